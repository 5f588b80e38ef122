"""Compiles loop.c. ``python -m ray_h5.read.native.build`` does so in a clone; `hatch_build.py` does when installing.

This module needs nothing but Python: the package it belongs to may not be installed yet.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
SWITCH = "RAY_H5_COMPILED"
"""Environment variable: 0 leaves the compiled loop out, for tests and to find out whether it causes a problem."""

FLAGS = ("-O3", "-shared", "-fPIC", "-pthread")


def compiled_path() -> Path:
    """Return where the compiled loop is. Its name has a digest of the source, so that a stale one is not loaded.

    It does not end in .so: it is no module of Python, for which tools that list modules would take it.
    """
    digest = hashlib.blake2b((HERE / "loop.c").read_bytes(), digest_size=6).hexdigest()
    return HERE / f"loop-{digest}.lib"


def compiler_here() -> str | None:
    """Return the C compiler of this machine, if it has one."""
    return os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)


def compile_loop() -> Path | None:
    """Compile the loop, unless that was done before; return the library, or None if there is no compiler."""
    target, compiler = compiled_path(), compiler_here()
    if compiler is None or os.environ.get(SWITCH) == "0":
        return None
    if not target.exists():
        for stale in HERE.glob("loop-*.lib"):
            stale.unlink()
        made = target.with_suffix(f".{os.getpid()}.tmp")
        done = subprocess.run([*compiler.split(), *FLAGS, "-o", str(made), str(HERE / "loop.c")], check=False)  # noqa: S603
        if done.returncode:
            made.unlink(missing_ok=True)
            return None
        made.replace(target)
    return target


if __name__ == "__main__":
    print(compile_loop())
