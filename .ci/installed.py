"""What an installation must have: the version, type hints, and the compiled loop."""

import sys
from importlib import metadata
from pathlib import Path

import ray_h5
from ray_h5.read.native.build import why_missing

home = Path(ray_h5.__file__).parent
assert home.is_relative_to(sys.prefix), home
assert metadata.version("ray_h5") == ray_h5.__version__
assert (home / "py.typed").exists()
assert (home / "inspect" / "page.html").exists()
assert (home / "read" / "native" / "loop.c").exists()
assert why_missing() is None, why_missing()
print(f"ray_h5 {ray_h5.__version__} in {home}")
