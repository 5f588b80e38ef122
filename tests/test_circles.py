"""No circle of files: no module needs, by any imports, one that needs it; those for types and in functions count."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import ray_h5

ROOT = Path(ray_h5.__file__).parent
PUBLIC = {"ray_h5", "ray_h5.torch_data"}  # tables of public names, which are looked up when they are used


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def statements(node):
    """Yield the statements below a node; expressions, which are most of a tree, import nothing."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


def imported_by(path, names):
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{each.name}" for each in node.names]
            yield from (each if each in names else node.module for each in full)


def test_files_form_no_circle():
    names = dict(modules())
    graph = {
        name: {*imported_by(path, names)} & {*names} - {name} for name, path in names.items() if name not in PUBLIC
    }
    order = [*TopologicalSorter(graph).static_order()]  # CycleError lists the circle
    assert {*graph} <= {*order}
