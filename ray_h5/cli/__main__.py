"""``python -m ray_h5.cli``, where the command ``ray-h5`` is not on the PATH."""

import sys

from ray_h5.cli import main

sys.exit(main())
