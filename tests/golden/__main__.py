"""Compare what is pinned with what is; `python -m tests.golden --update` writes it, and shows the difference.

A change of an order or a state is a decision: it goes into CHANGELOG.md, in the commit that makes it.
"""

import argparse
import difflib
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.golden.api import names_text
from tests.golden.draws import draws_of
from tests.golden.layouts import LAYOUTS
from tests.golden.makers import makers_text
from tests.golden.orders import facts_of
from tests.golden.uses import uses_text

FOLDER = Path(__file__).parent / "pinned"
API, DRAWS, MAKERS, TASKS, USES = "api.txt", "draws.json", "makers.txt", "tasks.json", "uses.txt"


def as_text(found, level=0):
    """Return a value as JSON: short ones on a line, so that a difference shows what moved."""
    line = json.dumps(found, ensure_ascii=False)
    if len(line) < 60 or level > 3 or not isinstance(found, (dict, list)):
        return line
    inside, pad = " " * (level + 1), " " * level
    if isinstance(found, list):
        parts = [inside + as_text(each, level + 1) for each in found]
        return "[\n" + ",\n".join(parts) + f"\n{pad}]"
    parts = [f"{inside}{json.dumps(key)}: {as_text(each, level + 1)}" for key, each in found.items()]
    return "{\n" + ",\n".join(parts) + f"\n{pad}}}"


def layout_text(name):
    with tempfile.TemporaryDirectory() as folder:
        return as_text(facts_of(name, Path(folder))) + "\n"


def draws_text():
    with tempfile.TemporaryDirectory() as folder:
        return as_text(draws_of(Path(folder))) + "\n"


def tasks_text():
    """Return the rows of each rank in Ray; it starts one."""
    import ray

    from tests.golden.tasks import PINNED, ranks_of

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.execution_options.preserve_order = False, True
    found = {}
    for name, kind, world in PINNED:
        with tempfile.TemporaryDirectory() as folder:
            found[f"{name}, {kind}, world {world}"] = ranks_of(name, Path(folder), kind, world)
    ray.shutdown()
    return as_text(found) + "\n"


def makers(with_ray):
    """Return, by file, the function that makes its text."""
    found = {API: names_text, DRAWS: draws_text, MAKERS: makers_text, USES: uses_text} | {
        f"{name}.json": (lambda name=name: layout_text(name)) for name in LAYOUTS
    }
    return found | {TASKS: tasks_text} if with_ray else found


def pinned(name):
    path = FOLDER / name
    return path.read_text() if path.exists() else ""


def difference(name, text):
    """Return the lines that differ from what is pinned, except for the version; long ones are cut."""
    before, after = (
        [line for line in each.splitlines() if '"written by"' not in line] for each in (pinned(name), text)
    )
    lines = difflib.unified_diff(before, after, f"pinned/{name}", f"now/{name}", n=1, lineterm="")
    return "\n".join(line[:200] for line in lines)


def main():
    options = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    options.add_argument("--update", action="store_true", help="write what is")
    options.add_argument("--ray", action="store_true", help="also the rows of ranks in Ray, which takes a minute")
    options.add_argument("names", nargs="*", help="files below tests/golden/pinned; by default all")
    given = options.parse_args()
    known = makers(given.ray)
    if unknown := set(given.names) - set(known):
        options.error(f"{', '.join(sorted(unknown))}: expected some of {', '.join(known)}")
    moved = 0
    for name in given.names or known:
        text = known[name]()
        if shown := difference(name, text):
            moved += 1
            print(shown)
        if given.update and shown:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / name).write_text(text)
    print(f"{moved} of {len(given.names or known)} files {'changed' if given.update else 'differ'}")
    sys.stdout.flush()
    os._exit(0 if given.update or not moved else 1)


if __name__ == "__main__":
    main()
