"""The names of Ray that are not public stand in one module, and are few."""

import ast
from pathlib import Path

import ray_h5.ray_data
from ray_h5.ray_data import ray_internals

FOLDER = Path(ray_h5.ray_data.__file__).parent
ALLOWED = {
    "Aggregate", "Count", "LogicalOptimizer", "LogicalPlan", "MapBatches", "StreamingRepartition", "Write",
    "_ExecutionCache", "_apply_transform", "_base_dataset", "_cache", "_cluster_autoscaler", "_coord_actor",
    "_deep_copy", "_logical_operators", "_logical_plan", "_topology", "global_worker", "stderr_deduplicator",
    "stdout_deduplicator",
}  # fmt: skip


def private_names(path):
    """Names that a module imports from internal modules of Ray, and private attributes of objects of others."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ray":
            is_internal = any(part.startswith("_") for part in node.module.split("."))
            found |= {each.name for each in node.names if is_internal or each.name.startswith("_")}
        elif isinstance(node, ast.keyword) and (node.arg or "").startswith("_"):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls", "clone", "new", "found", "made"}
            if not own:
                found.add(node.attr)
    return found


def test_they_stand_in_one_module_and_are_few():
    of_modules = {path: private_names(path) for path in FOLDER.rglob("*.py")}
    internals = Path(ray_internals.__file__)
    assert of_modules.pop(internals) - {"_bundle"} <= ALLOWED
    assert len(ALLOWED) <= 20
    # Private attributes of our own objects have other names.
    assert not {name for names in of_modules.values() for name in names} & ALLOWED


def test_nothing_of_ray_is_patched():
    """An assignment to an attribute of something imported."""
    for path in FOLDER.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {
            (each.asname or each.name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for each in node.names
        }
        for node in ast.walk(tree):
            for target in getattr(node, "targets", []) if isinstance(node, ast.Assign) else []:
                assert not (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id in imported
                ), f"{path}:{node.lineno}"
