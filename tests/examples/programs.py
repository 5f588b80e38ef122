"""The example programs as modules."""

import importlib.util
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def program(name):
    if str(EXAMPLES) not in sys.path:  # as for a program: some import `files`, which lies beside them
        sys.path.append(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
