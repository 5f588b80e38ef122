"""Do the tests notice? ``python -m tests.mutation MODULE_OR_FOLDER ... --tests TESTS ...``

Each mutant runs in a process that is forked from one that has imported and collected everything: only the tests that
execute the changed line run, until one fails. The table says which test noticed a mutant first.
"""

import argparse
import builtins
import functools
import gc
import importlib
import os
import pickle
import random
import select
import signal
import time
import types
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.equivalent import why_equivalent
from tests.mutation.mutants import marked, mutants_of, statements

WORTH_ANOTHER_RUN = ("survived  ", "uncovered ")


def in_child(work, timeout_s):
    """Return what `work` returns in a forked process; "timeout" if it takes too long, "died" if it does not return."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        with os.fdopen(writing, "wb") as out, open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
            try:
                said = work()
            except BaseException as error:  # noqa: BLE001  the parent reports it
                said = f"{type(error).__name__}: {error}"
            pickle.dump(said, out)
            out.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        ready, _, _ = select.select([said], [], [], timeout_s)
        body = said.read() if ready else b""
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return pickle.loads(body) if body else "died" if ready else "timeout"


def has_passed(item):
    reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.passed or report.skipped for report in reports)


def traced(item, functions, codes):
    """Run a test; return (whether it passed, seconds, the places that it executes)."""
    places = set()
    builtins.hit = places.add
    for code in codes:
        functions.replace(code)
    start = time.process_time()
    return has_passed(item), time.process_time() - start, places


class Functions:
    """The functions of modules that may be changed, by where they are written."""

    def __init__(self, paths):
        self._by_place, self._caches = defaultdict(list), []
        # Types alone: to ask some objects of torch for more warns.
        for known in gc.get_objects():
            if type(known) is functools._lru_cache_wrapper:
                self._caches.append(known)
            elif type(known) is types.FunctionType and known.__code__.co_filename in paths:
                self._by_place[_place(known.__code__)].append(known)

    def change(self, mutant):
        """Give a function, wherever it is referred to, its changed code; return whether there is one."""
        code = mutant.code()
        for cache in self._caches:
            cache.cache_clear()
        return code is not None and self.replace(code)

    def replace(self, code):
        changed = self._by_place[_place(code)]
        for function in changed:
            function.__code__ = code
        return bool(changed)


def _place(code):
    return code.co_filename, code.co_firstlineno, code.co_name


def verdict(mutant, functions, items):
    """Return the name of the first test that fails, or "" if all pass."""
    if not functions.change(mutant):
        return "unreachable"
    return next((item.nodeid for item in items if not has_passed(item)), "")


def shown(mutant):
    return f"{os.path.relpath(mutant.path)}:{mutant.at}: {mutant.before} -> {mutant.after}"


def nearest(text, mutants):
    """Return the mutant that a run showed as `text`, whose line may have moved; None if it is gone."""
    path, line, change = text.split(":", 2)
    same = [each for each in mutants if shown(each).startswith(f"{path}:") and shown(each).endswith(f":{change}")]
    return min(same, key=lambda each: abs(each.at - int(line)), default=None)


class Runner:
    """Runs the mutants instead of the tests that were collected."""

    def __init__(self, options):
        self.options = options

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self):
        """Let properties be quick: few examples, and no smaller ones of those that fail."""
        from hypothesis import HealthCheck, Phase, settings

        health, phases = list(HealthCheck), [Phase.explicit, Phase.generate]
        quick = {"phases": phases, "database": None, "suppress_health_check": health, "deadline": None}
        settings.register_profile("mutation", max_examples=self.options.examples, derandomize=True, **quick)
        settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        items = [item for item in session.items if "ray_local" not in item.fixturenames]
        paths = {str(path) for path in self.options.paths}
        for path in self.options.paths:  # or a child would import it after its functions were changed
            importlib.import_module(
                ".".join(path.relative_to(Path.cwd()).with_suffix("").parts).removesuffix(".__init__")
            )
        covering, seconds, functions = defaultdict(list), {}, Functions(paths)
        codes = [code for path in self.options.paths for code in marked(path)]
        for item in items:
            found = in_child(functools.partial(traced, item, functions, codes), self.options.timeout)
            if isinstance(found, str) or not found[0]:
                print(
                    f"left out, as it fails without a mutant: {item.nodeid} {found if isinstance(found, str) else ''}"
                )
                continue
            seconds[item.nodeid] = found[1]
            for place in found[2]:
                covering[place].append(item)
        print(f"{len(seconds)} of {len(items)} tests pass, {sum(seconds.values()):.0f} s", flush=True)
        self._run_mutants(covering, seconds, functions)
        return True

    def _run_mutants(self, covering, seconds, functions):
        mutants = [each for path in self.options.paths for each in mutants_of(path)]
        total = len(mutants)
        if self.options.again:
            lines = Path(self.options.again).read_text().splitlines()
            left = [line[11:].split("  ")[0] for line in lines if line[:10] in WORTH_ANOTHER_RUN]
            mutants = list(dict.fromkeys(filter(None, (nearest(each, mutants) for each in left))))
        if self.options.sample and self.options.sample < len(mutants):
            mutants = random.Random(self.options.seed).sample(mutants, self.options.sample)
        self._statements = {str(path): statements(path) for path in self.options.paths}
        counts, kills = defaultdict(Counter), Counter()
        for mutant in mutants:
            kind, name = self._kind_of(mutant, functions, covering, seconds, kills)
            kills[name] += 1
            counts[os.path.relpath(mutant.path)][kind] += 1
            print(f"{kind:10} {shown(mutant)}  {name}", flush=True)
        self._print_table(counts, total)

    def _kind_of(self, mutant, functions, covering, seconds, kills):
        """Return what becomes of a mutant, and the test that notices it or why none can."""
        if why := why_equivalent(mutant):
            return "equivalent", why
        tests, left = [], self.options.most
        covering = covering.get((mutant.path, self._statements[mutant.path][mutant.at]), [])
        for item in sorted(covering, key=lambda item: (-kills[item.nodeid], seconds[item.nodeid])):
            left -= seconds[item.nodeid]
            if left >= 0 or not tests:
                tests.append(item)
        if not tests:
            return "uncovered", ""
        name = in_child(functools.partial(verdict, mutant, functions, tests), self.options.timeout)
        if name in ("timeout", "died", "unreachable"):
            return name, ""
        return ("killed", name) if name else ("survived", "")

    def _print_table(self, counts, total):
        kinds = ["killed", "timeout", "died", "equivalent", "survived", "uncovered", "unreachable"]
        print(f"\n{sum(sum(each.values()) for each in counts.values())} of {total} mutants")
        print("\t".join(["module", *kinds]))
        for path in sorted(counts):
            print("\t".join([path, *(str(counts[path][kind]) for kind in kinds)]))
        whole = sum(counts.values(), Counter())
        print("\t".join(["all", *(str(whole[kind]) for kind in kinds)]), flush=True)


def main():
    options = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    options.add_argument("modules", nargs="+", help="modules, and folders of them, that are changed")
    options.add_argument("--tests", nargs="+", default=["tests/golden", "tests/training_runs"])
    options.add_argument("--select", default="", help="as pytest -k")
    options.add_argument("--sample", type=int, help="how many mutants, drawn from all")
    options.add_argument("--again", metavar="FILE", help="what a run printed: the mutants that it did not kill")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--most",
        type=float,
        default=20,
        help="how many seconds of tests run for a mutant, those that notice most first",
    )
    options.add_argument("--examples", type=int, default=30, help="how many examples a property is tried with")
    options.add_argument("--timeout", type=float, default=120)
    given = options.parse_args()
    found = [Path(each).resolve() for each in given.modules]
    given.paths = sorted({path for each in found for path in (each.rglob("*.py") if each.is_dir() else [each])})
    pytest.main(
        [
            *given.tests,
            "-n",
            "0",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            given.select,
            "-s",
        ],
        plugins=[Runner(given)],
    )


if __name__ == "__main__":
    main()
