"""Adapters are modules of a folder that users put on their path."""

import sys

from tests.examples.programs import EXAMPLES

ADAPTERS = EXAMPLES / "adapters"

if str(ADAPTERS) not in sys.path:
    sys.path.append(str(ADAPTERS))
