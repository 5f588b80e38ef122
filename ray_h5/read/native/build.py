"""Compiles loop.c, and says why the loop is missing.

``python -m ray_h5.read.native.build`` compiles it in a clone; `hatch_build.py` does when a wheel is built.

This module needs nothing but Python: the package it belongs to may not be installed yet.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SWITCH = "RAY_H5_COMPILED"
"""Environment variable: 0 leaves the compiled loop out, for tests and to find out whether it causes a problem."""

TARGET = "RAY_H5_TARGET"
"""Environment variable: the platform that a wheel is built for, a key of `TARGETS`; by default this one."""

TARGETS = {
    "x86_64-linux-gnu.2.17": "manylinux2014_x86_64",
    "aarch64-linux-gnu.2.17": "manylinux2014_aarch64",
    "x86_64-linux-musl": "musllinux_1_2_x86_64",
    "aarch64-linux-musl": "musllinux_1_2_aarch64",
    "x86_64-macos": "macosx_10_13_x86_64",
    "aarch64-macos": "macosx_11_0_arm64",
}
"""The platforms that wheels are built for, as the compiler of ziglang names them, and as tags of wheels name them."""

# The oldest system of a tag is a part of the compiler's name of it.
_ZIG_NAMES = {"x86_64-macos": "x86_64-macos.10.13", "aarch64-macos": "aarch64-macos.11.0"}

FLAGS = ("-O3", "-shared", "-fPIC", "-pthread")

# Includes what loop.c needs of the system: a compiler without the headers of the C library is found out.
_PROBE = "#include <pthread.h>\n#include <string.h>\n#include <unistd.h>\nint ray_h5_probe;\n"

_ZIG = (sys.executable, "-m", "ziglang", "cc")


_MODULE = "ray_h5.read.native.build"


class CompilerError(Exception):
    """No compiler made the loop; the message says which were tried, and what each of them printed."""


def compiled_path() -> Path:
    """Return where the compiled loop is. Its name has a digest of the source, so that a stale one is not loaded.

    It does not end in .so: it is no module of Python, for which tools that list modules would take it.
    """
    digest = hashlib.blake2b((HERE / "loop.c").read_bytes(), digest_size=6).hexdigest()
    return HERE / f"loop-{digest}.lib"


def is_left_out() -> bool:
    """Return whether the compiled loop is switched off."""
    return os.environ.get(SWITCH) == "0"


def compilers() -> Iterator[tuple[str, ...]]:
    """Yield the C compilers to try, in order: that of CC, those of the PATH, that of ziglang if it is installed."""
    if named := os.environ.get("CC"):
        yield tuple(shlex.split(named))
    yield from ((name,) for name in ("cc", "gcc", "clang") if shutil.which(name))
    if importlib.util.find_spec("ziglang"):
        yield _ZIG


def why_missing() -> str | None:
    """Return why rows are decoded in Python, and what to do; None if the compiled loop is there, and loads."""
    if is_left_out():
        return f"{SWITCH}=0 leaves it out"
    path = compiled_path()
    if not path.exists():
        is_stale = any(HERE.glob("loop-*.lib"))
        reason = "its source has changed since it was compiled" if is_stale else "it was not compiled for this system"
        return f"{reason}. With a C compiler (gcc, clang, or `pip install ziglang`), run: python -m {_MODULE}"
    try:
        ctypes.CDLL(str(path))
    except OSError as exc:
        return f"it does not load ({exc}). Remove {path}, then run: python -m {_MODULE}"
    return None


def loop_line() -> str:
    """Return a line that says whether rows are decoded by the compiled loop."""
    reason = why_missing()
    return "compiled loop: yes" if reason is None else f"compiled loop: no, {reason}"


def needs_zig() -> bool:
    """Return whether a build needs the compiler of ziglang: for another platform, or as no other compiler works."""
    if is_left_out():
        return False
    if os.environ.get(TARGET):
        return True
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text(_PROBE, encoding="ascii")
        others = (compiler for compiler in compilers() if compiler != _ZIG)
        made = str(Path(folder, "probe.lib"))
        return all(_said_by([*compiler, *FLAGS, "-o", made, str(probe)]) is not None for compiler in others)


def compile_loop() -> Path:
    """Compile the loop for this machine, unless that was done before; return the library.

    Raises
    ------
    CompilerError
        If there is no compiler, or none that compiles the loop.
    """
    library = compiled_path()
    if not library.exists():
        for stale in HERE.glob("loop-*.lib"):
            stale.unlink()
        _compile(compilers(), library)
    return library


def compile_for(target: str, folder: Path) -> Path:
    """Compile the loop for a platform of `TARGETS` by the compiler of ziglang; return the library, in that folder.

    Raises
    ------
    CompilerError
        If there is no such platform, or ziglang is not installed or fails.
    """
    if target not in TARGETS:
        raise CompilerError(f"{TARGET}={target}: expected one of {', '.join(TARGETS)}")
    library = folder / compiled_path().name
    zig = (*_ZIG, "-target", _ZIG_NAMES.get(target, target))
    if not target.endswith("musl"):
        _compile([zig], library)
        return library
    # The library musl has another name in each system. So the loop names no C library: Python has loaded one already.
    compiled = folder / "loop.o"
    for step in (
        ["-O3", "-fPIC", "-pthread", "-c", str(HERE / "loop.c"), "-o", str(compiled)],
        ["-nostdlib", "-shared", "-fPIC", str(compiled), "-o", str(library)],
    ):
        if (message := _said_by([*zig, *step])) is not None:
            raise CompilerError(message)
    return library


def _compile(candidates: Iterator[tuple[str, ...]] | list[tuple[str, ...]], library: Path) -> None:
    """Compile loop.c by the first compiler that does so. A library is there whole, or not at all."""
    unfinished = library.with_suffix(f".{os.getpid()}.tmp")
    messages = []
    for compiler in candidates:
        message = _said_by([*compiler, *FLAGS, "-o", str(unfinished), str(HERE / "loop.c")])
        if message is None:
            unfinished.replace(library)
            return
        unfinished.unlink(missing_ok=True)
        messages.append(f"{shlex.join(compiler)}: {message}")
    hint = "Install one (gcc, clang, or `pip install ziglang`), or name one by CC."
    raise CompilerError("\n".join(messages) or f"no C compiler was found. {hint}")


def _said_by(command: list[str]) -> str | None:
    """Run a compiler; return what it said if it failed, and None if it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as exc:
        return str(exc)
    return (
        None if done.returncode == 0 else done.stderr.strip() or done.stdout.strip() or f"ended with {done.returncode}"
    )


if __name__ == "__main__":
    try:
        print(compile_loop())
    except CompilerError as error:
        sys.exit(str(error))
