"""Compiles the loop of `ray_h5.read.native` into the wheel; without a C compiler, the same steps run in Python."""

from __future__ import annotations

import os
import runpy
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("ray_h5", "read", "native")
BUILD = runpy.run_path(str(Path(__file__).parent / NATIVE / "build.py"))


class CompileLoop(BuildHookInterface):
    """Puts the compiled loop beside its source, also for an editable install.

    ``RAY_H5_TARGET=x86_64-linux-gnu.2.17 python -m build --wheel`` builds a wheel for that platform, on any.
    """

    def dependencies(self) -> list[str]:
        """Return what the build needs besides hatchling: a compiler from the package index, if there is no other."""
        return ["ziglang>=0.13"] if self.target_name == "wheel" and BUILD["needs_zig"]() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling's signature
        if self.target_name != "wheel" or BUILD["is_left_out"]():
            return
        target = os.environ.get(BUILD["TARGET"])
        if target:
            # Not beside its source: the machine that builds it may not load it.
            self._folder = tempfile.TemporaryDirectory()
            library = BUILD["compile_for"](target, Path(self._folder.name))
            build_data["force_include"][str(library)] = str(NATIVE / library.name)
            platform = BUILD["TARGETS"][target]
        else:
            try:
                library = BUILD["compile_loop"]()
            except BUILD["CompilerError"] as exc:
                self.app.display_warning(
                    f"rows will be decoded in Python, which is slower: the loop in C was not compiled.\n{exc}"
                )
                return
            build_data["artifacts"].append(str(NATIVE / library.name))
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
