"""What an installation must have: the version, type hints, and the compiled loop where there is a compiler."""

import shutil
import sys
from importlib import metadata
from pathlib import Path

import ray_h5

home = Path(ray_h5.__file__).parent
assert home.is_relative_to(sys.prefix), home
assert metadata.version("ray_h5") == ray_h5.__version__
assert (home / "py.typed").exists()
assert (home / "inspect" / "page.html").exists()
assert (home / "read" / "native" / "loop.c").exists()
assert list((home / "read" / "native").glob("*.lib")) or shutil.which("cc") is None
print(f"ray_h5 {ray_h5.__version__} in {home}")
