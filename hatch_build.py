"""Compiles the loop of `ray_h5.read.native` if there is a C compiler; without it, the same steps run in Python."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path(__file__).parent / "ray_h5" / "read" / "native" / "build.py"


class CompileLoop(BuildHookInterface):
    """Puts the compiled loop beside its source, also for an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  hatchling's signature
        if self.target_name != "wheel":
            return
        made = runpy.run_path(str(BUILD))["compile_loop"]()
        if made is None:
            self.app.display_warning("no C compiler was found: rows are decoded in Python, which is slower")
            return
        build_data["artifacts"].append(f"ray_h5/read/native/{made.name}")
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
