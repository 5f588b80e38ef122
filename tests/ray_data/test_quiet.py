"""ray_h5.quiet: the messages of a program and of this package are seen, and Ray's are few."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pyarrow as pa
import pytest
from ray.data.extensions import ArrowVariableShapedTensorArray
from ray.data.util.torch_utils import arrow_batch_to_tensors
from ray.exceptions import RayTaskError, UserCodeException

from ray_h5.errors import CorruptChunkError, StaleIndexError
from ray_h5.ray_data.internals import noise
from ray_h5.ray_data.internals.noise import own_error
from ray_h5.ray_data.quiet import short_text

PROGRAM = """
import os, sys
import ray, ray_h5
ray_h5.quiet()
ray.init(address="local", num_cpus=2, object_store_memory=128 << 20, include_dashboard=False)
ds = ray_h5.read_h5("a.h5", shuffle=True)
print(ds.count())
print(sum(len(batch["x"]) for batch in ds.iter_batches()))
try:
    ds.filter(expr=ray_h5.where(zz=3)).count()
except ray_h5.RayH5Error as exc:
    print("caught", exc)
os.utime("a.h5", (1, 1))
for batch in ds.iter_batches():  # this line fails
    pass
"""


@pytest.mark.slow
def test_a_program_shows_its_own_lines_and_our_errors(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((100, 3), "f4")
        file["odd"] = np.zeros(100, np.longdouble)
    (tmp_path / "program.py").write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert found.returncode == 1
    assert found.stdout.splitlines()[:2] == ["100", "100"], found.stdout
    assert found.stdout.splitlines()[2].startswith("caught ")
    lines = found.stderr.splitlines()
    assert lines[0].startswith("ray_h5: shuffle=True: seed ")
    assert lines[1].startswith("ray_h5: warning: left out 1 of 2 columns: odd")
    assert lines[2].startswith("ray_h5: reading 100 of 100 rows in blocks of ")
    assert lines[3] == "Traceback (most recent call last):"
    assert [line for line in lines if "this line fails" in line]
    (last,) = [line for line in lines if line.startswith("ray_h5.errors.StaleIndexError: ")]
    assert lines.index(last) == 6
    assert len(lines) == 7, found.stderr


def wrapped(error, kind=RayTaskError):
    return kind("read", "a stack trace of many lines", error).as_instanceof_cause()


OWN = CorruptChunkError("a.h5: column 'x': chunk 3 is damaged")


@pytest.mark.parametrize("error", [OWN, wrapped(OWN), wrapped(wrapped(OWN))])
def test_our_error_is_found_and_shown_alone(error):
    assert own_error(error) is OWN
    assert short_text(error, None) == "ray_h5.errors.CorruptChunkError: a.h5: column 'x': chunk 3 is damaged\n"


def test_our_error_below_an_error_of_user_code():
    error = UserCodeException()
    error.__cause__ = StaleIndexError("a.h5: changed")
    assert str(own_error(error)) == "a.h5: changed"


def test_tracebacks_of_a_helper_that_ends_late_are_left_out():
    shown = []
    show = noise._without_chatter(lambda data: shown.extend(data["lines"]))
    trace = ["Traceback (most recent call last):", '  File "a.py", line 3, in stop', "    ray.get(x)"]
    late = ["E 12 Failed to stop PlacementGroupCleaner gracefully.", *trace, "ray.exceptions.GetTimeoutError: late"]
    again = ["", "During handling of the above exception, another exception occurred:", "", *trace, "KeyError: 1"]
    own = ["my line", *trace, "ValueError: mine"]
    show({"lines": [*own, *late, *again, *own, *late]})
    assert shown == own * 2
    show({"lines": late})  # nothing is left to show
    assert shown == own * 2
    # Where ray[default] is not installed, it says this every second.
    show({"lines": ["Failed to query Ray Train Controller actor state. State API may be temporarily unavailable."]})
    assert shown == own * 2


@pytest.mark.parametrize("error", [ValueError("x"), wrapped(ValueError("x")), KeyboardInterrupt()])
def test_other_errors_are_shown_as_ever(error):
    assert own_error(error) is None
    assert short_text(error, None) is None


@pytest.mark.parametrize("columns", [["text"], ["x", "text"]])
def test_a_column_of_text_is_named(columns):
    table = pa.table({"x": [1, 2], "text": ["a", "b"]}).select(columns)
    with ThreadPoolExecutor(2) as pool, pytest.raises(TypeError) as raised:
        arrow_batch_to_tensors(table, combine_chunks=True, threadpool=pool)
    text = short_text(raised.value, raised.tb)
    assert "TypeError: column 'text': " in text
    assert "labels={'text': 'auto'}" in text


@pytest.mark.parametrize("columns", [["rows"], ["x", "rows"]])
def test_a_column_whose_rows_differ_in_shape_is_named(columns):
    rows = ArrowVariableShapedTensorArray.from_numpy([np.zeros(2), np.zeros(3)])
    table = pa.table({"x": [1, 2], "rows": rows}).select(columns)
    with ThreadPoolExecutor(2) as pool, pytest.raises(RuntimeError) as raised:
        arrow_batch_to_tensors(table, combine_chunks=True, threadpool=pool)
    text = short_text(raised.value, raised.tb)
    assert "RuntimeError: column 'rows': " in text
    assert "TorchCollate(padding=True)" in text
    assert "concurrent" not in text
    assert short_text(RuntimeError("another"), None) is None


@pytest.mark.slow
def test_a_notebook_shows_our_error_below_the_lines_of_its_cells():
    pytest.importorskip("IPython")
    code = "import ray_h5; ray_h5.quiet(); ray_h5.H5Dataset('/nowhere/a.h5')"
    words = [sys.executable, "-m", "IPython", "--colors=NoColor", "-c", code]
    found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    lines = [line for line in (found.stdout + found.stderr).splitlines() if line.strip()]
    start = lines.index("Traceback (most recent call last):")
    assert "H5Dataset('/nowhere/a.h5')" in lines[start + 2]
    shown = [line for line in lines[start + 3 :] if line.strip(" ^~")]  # Python 3.11 marks the place
    assert shown[0].startswith("ray_h5.errors.NotFoundError: ")
