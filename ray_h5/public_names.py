"""The public names of a package, from its stub: the one table of them, which type checkers read, too."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from typing import Any

_ROOT = __name__.partition(".")[0]


class PublicNames:
    """Where the public names of a package are defined; they are imported when they are first used.

    The stub of the package has a line ``from module import name as name`` for each, of which the first one counts.
    ``from ray_h5 import *`` stands for the names of ray_h5 that need no Ray.

    Attributes
    ----------
    homes : dict of str to str
        The module of each name that has a line.
    modules : list of str
        Names that are modules.
    listed : list of str
        What ``__all__`` has: these names without those of `ray_h5.compat`.
    """

    def __init__(self, package: str) -> None:
        self._package, self._need_ray = package, set[str]()
        self.homes: dict[str, str] = {}
        self.modules: list[str] = []
        stub = pkgutil.get_data(package, "__init__.pyi")  # also from an archive
        assert stub is not None
        for node in ast.parse(stub).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    self._add(node.module, each.name)
        self.listed = sorted(name for name, home in self.homes.items() if not home.startswith(f"{_ROOT}.compat."))

    def _add(self, module: str, name: str) -> None:
        if module == _ROOT != self._package:
            for other, home in PublicNames(module).homes.items() if name == "*" else ():
                if home.startswith(f"{_ROOT}.ray_data"):
                    self._need_ray.add(other)
                else:
                    self.homes.setdefault(other, home)
        elif module == self._package:
            self.modules.append(name)
        elif name != "*":
            self.homes.setdefault(name, module)

    def look_up(self, name: str) -> Any:
        """Return the value of a name.

        Raises
        ------
        AttributeError
            If it is no public name. Python offers the nearest one.
        """
        if name in self.modules:
            return importlib.import_module(f"{self._package}.{name}")
        home = self.homes.get(name, f"{_ROOT}.errors" if name.endswith("Error") else "")
        value = getattr(importlib.import_module(home), name, None) if home else None
        if value is None:
            elsewhere = f"; it needs Ray: import it from {_ROOT}" if name in self._need_ray else ""
            message = f"module {self._package!r} has no attribute {name!r}{elsewhere}"
            raise AttributeError(message, name=name, obj=sys.modules.get(self._package))
        return value
