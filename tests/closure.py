"""What reading plain local files imports: ``python -m tests.closure loader`` or ``read_h5``, then files."""

import sys
from pathlib import Path


def imported():
    """Return the modules of ray_h5 that are imported, and their lines."""
    files = {name: module.__file__ for name, module in [*sys.modules.items()] if f"{name}.".startswith("ray_h5.")}
    return {name: len(Path(file).read_text().splitlines()) for name, file in files.items()}


def read(how, paths):
    """Read an epoch of all columns: by a loader; or as Ray does, the driver's part and that of the tasks."""
    if how == "loader":
        from ray_h5 import loader

        assert sum(len(next(iter(batch.values()))) for batch in loader(paths, 4))
    else:
        from ray_h5 import H5Datasource, read_h5

        assert callable(read_h5)
        tasks = H5Datasource(paths, shuffle=True).get_read_tasks(2)
        assert sum(len(block) for task in tasks for block in task())


if __name__ == "__main__":
    read(sys.argv[1], sys.argv[2:])
    found = imported()
    for name, lines in sorted(found.items()):
        print(f"{lines:5} {name}")
    beside = [name for name in ("pandas", "pyarrow.acero", "pyarrow.dataset", "ray", "sklearn") if name in sys.modules]
    print(len(found), sum(found.values()), *beside)
