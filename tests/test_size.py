"""The size of the whole: lines, and signs that a mechanism is there more than once.

No package has a limit of its own. A limit is raised in the commit that needs it, whose message says what people get for
it; ``python -m tests.test_size`` prints today's numbers, a package a line.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest

import ray_h5
import ray_h5.torch_data

PACKAGE = Path(ray_h5.__file__).parent

pytestmark = pytest.mark.xdist_group("size")  # they share what is measured


class Size(NamedTuple):
    """Numbers of one package, or of all."""

    lines: int
    """Lines of all modules, with docstrings, comments and blank lines."""
    modules: int
    hidden_imports: int
    """Imports of modules of ray_h5 inside functions."""
    lone_protocols: int
    """Protocols that at most one class of ray_h5 implements."""
    single_use: int
    """Modules that one other module of ray_h5 imports."""
    wide_functions: int
    """Functions with six or more parameters, public ones apart."""


LIMITS = Size(lines=63_700, modules=312, hidden_imports=36, lone_protocols=0, single_use=40, wide_functions=27)
"""Of all packages together."""

TEST_LINES = 67_200
"""Of all modules in tests/."""

COMMENTS = 1.35
"""Per cent of lines that are comments, over all packages: this one may only rise."""


class Module:
    """What the source of one module shows."""

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(text)
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.package, self.is_stub = parts[1], path.suffix == ".pyi"
        self.lines = text.count("\n")
        nodes = list(ast.walk(self.tree))
        self.functions = [node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        self.classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        self.comments = sum(line.lstrip().startswith("#") for line in text.splitlines())

    def imports(self, node: ast.AST) -> set[str]:
        """Return the names of ray_h5 that are imported below a node, as far as they may be modules."""
        names: set[str] = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import):
                names |= {alias.name for alias in inner.names}
            elif isinstance(inner, ast.ImportFrom) and inner.module and not inner.level:
                names |= {inner.module, *(f"{inner.module}.{alias.name}" for alias in inner.names)}
        return {name for name in names if name.split(".")[0] == "ray_h5"}


@functools.cache
def measure() -> tuple[dict[str, Size], float]:
    """Return the numbers of each package, and the share of comments in per cent."""
    modules = [Module(path) for path in sorted(PACKAGE.rglob("*.py*")) if path.suffix in (".py", ".pyi")]
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        for name in module.imports(module.tree):
            importers[name] |= {module.name, "a user"} if module.is_stub else {module.name}
    members = _members(modules)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for module in modules:
        count = counts[module.package]
        count["lines"] += module.lines
        count["modules"] += not module.is_stub
        count["hidden_imports"] += _hidden_imports(module)
        count["lone_protocols"] += _lone_protocols(module, members)
        count["single_use"] += not module.is_package and len(importers[module.name] - {module.name}) == 1
        count["wide_functions"] += sum(_is_wide(function) for function in _own_functions(module))
    comments = 100 * sum(module.comments for module in modules) / sum(module.lines for module in modules)
    return {name: Size(*(count[field] for field in Size._fields)) for name, count in counts.items()}, comments


def _hidden_imports(module: Module) -> int:
    statements = {
        id(node)
        for function in module.functions
        for node in ast.walk(function)
        if isinstance(node, (ast.Import, ast.ImportFrom)) and module.imports(node)
    }
    return len(statements)


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def _names_in(node: ast.ClassDef) -> set[str]:
    """Return the names of methods and fields that a class defines."""
    names = {inner.name for inner in node.body if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))}
    annotated = [inner.target for inner in node.body if isinstance(inner, ast.AnnAssign)]
    fields = {target.id for target in annotated if isinstance(target, ast.Name)}
    return names | fields


def _members(modules: list[Module]) -> list[set[str]]:
    """Return what each class that is no Protocol has, with what it inherits from classes of ray_h5."""
    classes = {node.name: node for module in modules for node in module.classes}

    def of(node: ast.ClassDef, seen: frozenset[str] = frozenset()) -> set[str]:
        bases = {ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases} - seen
        inherited = (of(classes[base], seen | {node.name}) for base in bases if base in classes)
        return _names_in(node).union(*inherited)

    return [of(node) for module in modules for node in module.classes if not _is_protocol(node)]


def _lone_protocols(module: Module, members: list[set[str]]) -> int:
    protocols = [_names_in(node) for node in module.classes if _is_protocol(node)]
    return sum(sum(names <= has for has in members) < 2 for names in protocols if names)


def _own_functions(module: Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions that are not public, nor the ``__init__`` of a public class."""
    public = {*ray_h5.__all__, *ray_h5.torch_data.__all__}
    apart = {
        id(method)
        for node in module.classes
        if node.name in public
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    }
    return [node for node in module.functions if node.name not in public and id(node) not in apart]


def _is_wide(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")]) >= 6


def _sum(sizes: dict[str, Size]) -> Size:
    return Size(*(sum(column) for column in zip(*sizes.values(), strict=True)))


def test_the_house_keeps_its_size():
    sizes, comments = measure()
    worse = {
        field: f"{value}, at most {limit}"
        for field, value, limit in zip(Size._fields, _sum(sizes), LIMITS, strict=True)
        if value > limit
    }
    assert worse == {}, "merge what stands twice, or raise the limit here and say what people get for it"
    assert comments >= COMMENTS, "comments say why: where a reader stops, one helps"


def test_the_tests_keep_their_size():
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in Path(__file__).parent.rglob("*.py"))
    assert lines <= TEST_LINES, "merge tests, or raise the limit in tests/test_size.py and say what they show"


if __name__ == "__main__":
    by_package, share = measure()
    for name, size in sorted(by_package.items()):
        print(f"{name:20} {size}")
    print(f"{'sum':20} {_sum(by_package)}, comments {share:.2f}%")
