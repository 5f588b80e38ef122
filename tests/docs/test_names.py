"""What the documents name is there: errors, options, commands, flags, extras; and numbers are those of the code."""

import ast
import builtins
import inspect
import re
import runpy
from importlib import import_module

import pytest

import ray_h5
from ray_h5 import torch_data
from ray_h5.cli import commands
from tests.bench import BENCHES
from tests.docs.pages import ERRORS, PAGES, ROOT, prose, text_of

OF_OTHERS = {"TrainingFailedError"}
"""Errors of Ray."""

NAMED = {
    name: getattr(home, name)
    for home in (torch_data, ray_h5)
    for name in dir(home)
    if callable(getattr(home, name)) and not name.startswith("_")
}
"""Every public function and class."""

SPANS = [(page, code) for page in PAGES for code in re.findall(r"`([^`]+)`", prose(page))]


def flags():
    """Return the flags of all commands."""
    return {flag for command in commands.commands.values() for each in command.params for flag in each.opts}


def calls():
    """Return (page, code, call) of each call that a page names in its text, where it is Python or nearly so."""
    for page, code in SPANS:
        try:
            tree = ast.parse(re.sub(r"=(?=[,)])", "=0", code.replace("\n", " ")))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield page, code, node


def test_every_error_that_a_page_names_exists():
    named = {(page, name) for page, code in SPANS for name in re.findall(r"\b\w+Error\b", code)}
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "ray_h5").rglob("*.py"))
    made = {name for text in sources for name in re.findall(r"^class (\w+Error)\(", text, re.MULTILINE)}
    known = {*ERRORS, *dir(builtins), *made, *OF_OTHERS}
    assert [(page, name) for page, name in sorted(named) if name not in known] == []
    assert len(named) > 30


def test_every_call_that_a_page_names_has_these_options():
    tried = 0
    for page, code, call in calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in NAMED:
            tried += 1
            options = inspect.signature(NAMED[name]).parameters
            open_ended = any(each.kind is each.VAR_KEYWORD for each in options.values())
            unknown = [each.arg for each in call.keywords if each.arg and each.arg not in options]
            assert open_ended or not unknown, f"{page}: {code} has no {unknown}"
    assert tried > 50


def test_every_flag_that_a_page_names_exists():
    programs = [
        path.read_text()
        for folder in ("examples", "cluster", "docs", "tests/bench", "tests/golden")
        for path in (ROOT / folder).glob("*.py")
    ]
    known = {*flags(), "--help", "--version"} | set(re.findall(r'"(--[\w-]+)"', "\n".join(programs)))
    for page, code in SPANS:
        words = code.split()
        if words[:1] == ["ray-h5"] or len(words) == 1:
            for flag in re.findall(r"(?:^| )(--[a-z][\w-]+)", code):
                assert flag in known, f"{page}: {code}"


def test_every_command_that_a_page_names_exists():
    for page in PAGES:
        for command in re.findall(r"\bray-h5 ([a-z]+)\b", text_of(page)):
            assert command in commands.commands, f"{page}: ray-h5 {command}"
        for bench in re.findall(r"\bpython -m tests.bench ([a-z]+)\b", text_of(page)):
            assert bench in BENCHES, f"{page}: python -m tests.bench {bench}"


def test_every_extra_that_a_page_names_exists():
    known = re.findall(r"^(\w+) = \[", text_of("pyproject.toml").partition("optional-dependencies]")[2], re.MULTILINE)
    for page in PAGES:
        for names in re.findall(r"ray_h5\[([\w,]+)\]", text_of(page)):
            assert set(names.split(",")) <= set(known), f"{page}: ray_h5[{names}]"


def test_every_option_of_read_h5_is_in_a_group_of_the_page_of_options():
    groups = runpy.run_path(str(ROOT / "docs" / "make_options.py"))["READ_H5"]
    assert sorted(inspect.signature(ray_h5.read_h5).parameters) == sorted(" ".join(groups.values()).split())


def test_every_public_name_with_options_is_on_the_page_of_options():
    listed = runpy.run_path(str(ROOT / "docs" / "make_options.py"))["NAMES"]
    names = {name.partition(".")[0] for line in listed.values() for name in line.split()}
    plain = {"read_h5", "RayH5Error", "Sample", "any_equal", "between", "row_mask", "where"}  # their page says it all
    assert set(ray_h5.__all__) - names == plain


MIB, KIB = 1 << 20, 1 << 10
UNITS = {MIB: " MiB", KIB: " KiB", 1: ""}
NUMBERS = [
    ("docs/performance.md", "order.block_layout.BLOCK_BYTES", MIB),
    ("docs/performance.md", "torch_data.batches.processes._BATCHES", 1),
    ("docs/performance.md", "plan.row_source.KEPT_BYTES_A_FILE", MIB),
    ("docs/performance.md", "plan.row_source.MOST_KEPT_BYTES", MIB),
    ("docs/rows.md", "rows.kinds.grid_rows._MOST_CONSTANT_BYTES", MIB),
    ("docs/object-stores.md", "storage.byte_source.IN_FLIGHT_BYTES", MIB),
    ("docs/object-stores.md", "storage.request_pool.IN_FLIGHT", 1),
    ("docs/object-stores.md", "storage.request_pool.GAP_BYTES", KIB),
    ("docs/object-stores.md", "storage.request_pool.MOST_PART_BYTES", MIB),
    ("docs/clusters.md", "storage.byte_source.IN_FLIGHT_BYTES", MIB),
    ("docs/training.md", "ray_data.tasks._MAX_ATTEMPTS", 1),
    ("docs/writing.md", "writing.repack.copy_file.SLAB_BYTES", MIB),
    ("docs/writing.md", "writing.file_writer.IN_FLIGHT_BYTES", MIB),
    ("docs/writing.md", "writing.layouts.WORTH_BYTES", KIB),
    ("SECURITY.md", "buffers._TIMES_OF_FILES", 1),
    ("SECURITY.md", "buffers._ALWAYS_BYTES", MIB),
]
"""Numbers that a page has because the code has them: the constant, and its unit on the page."""


def constant(path):
    """Return the value of a dotted path below the package."""
    parts, found, names = path.split("."), None, []
    while found is None:
        try:
            found = import_module(".".join(["ray_h5", *parts]))
        except ModuleNotFoundError:
            names.insert(0, parts.pop())
    for name in names:
        found = getattr(found, name)
    return found


@pytest.mark.parametrize(("page", "path", "unit"), NUMBERS)
def test_a_number_of_the_code_is_on_its_page(page, path, unit):
    assert re.search(rf"\b{constant(path) // unit}{UNITS[unit]}\b", " ".join(text_of(page).split()))


def test_each_test_that_keeps_a_fault_away_is_there():
    named = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", text_of("tests/faults.md")))
    assert [f"{path}::{name}" for path, name in sorted(named) if f"def {name}" not in text_of(path)] == []
