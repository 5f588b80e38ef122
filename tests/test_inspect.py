import json
import re
import subprocess
import sys
from dataclasses import replace

import h5py
import hdf5plugin
import numpy as np
import pytest

from ray_h5 import Groups, H5Dataset, Windows
from ray_h5.cli import main
from ray_h5.errors import SchemaMismatchError
from ray_h5.index.file_options import FileOptions
from ray_h5.inspect.measure import advice, inspect_files
from ray_h5.inspect.text import to_text
from ray_h5.manifest.layout import ColumnLayout, ColumnNotes, FilterPipeline, FilterStep
from ray_h5.manifest.value_type import ValueType
from tests.kit.files import save

TABLE = """\
  column   rows  dtype       row shape  chunk rows  filter pipeline     stored  real
  epoch    2000  float32     -          1           -                   8 kB    8 kB
  flat     2000  float64     4          contiguous  -                   64 kB   64 kB
  name     2000  string      -          contiguous  -                   32 kB   ?
  obs/
    image  2000  uint8       3 x 8 x 8  1500        shuffle, deflate 4  604 B   384 kB
    pose/
      z    2000  complex128  -          contiguous  -                   32 kB   32 kB
    split  2000  float32     40         64 of 20    blosc zstd 5        12 kB   320 kB
"""


@pytest.fixture
def path(tmp_path):
    """Write a file with columns of many layouts."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        file.create_dataset("epoch", data=np.arange(2000, dtype="f4"), chunks=(1,))
        file.create_dataset("flat", data=np.zeros((2000, 4)))
        file["name"] = np.array(["a"] * 2000, dtype=h5py.string_dtype())
        file.create_dataset(
            "obs/image", data=np.zeros((2000, 3, 8, 8), "u1"), chunks=(1500, 3, 8, 8), compression="gzip", shuffle=True
        )
        split = file.create_dataset(
            "obs/split", (2000, 40), "f4", chunks=(64, 20), **hdf5plugin.Blosc(cname="zstd", clevel=5)
        )
        for corner in np.ndindex(32, 2):  # each takes 188 bytes, with any compressor
            split.id.write_direct_chunk((64 * corner[0], 20 * corner[1]), bytes(188))
        file["obs/pose/z"] = np.zeros(2000, "c16")
        file["one"] = 3
    return path


@pytest.fixture
def other(tmp_path):
    """Write a file that has another column."""
    return save(tmp_path / "b.h5", {"x": np.arange(5)})


def command(*argv):
    return main(["inspect", *argv])


def test_text(path):
    text = to_text(inspect_files(FileOptions.of([path])))
    assert TABLE in text
    lines = dict(line.strip().split(": ", 1) for line in text.split("\nAdvice:\n")[1].splitlines()[:3])
    for name, number in (("epoch", "16384 rows"), ("obs/image", "341 rows"), ("obs/split", "2 chunks")):
        assert number in lines[name]
    assert "1 single value, which is no column: one\n" in text
    assert "  2000 rows of 436 B, in 4 blocks of 512\n" in text
    assert text.endswith("obs/pose/z: complex128, obs/split: float32 (40,)")


def test_json(path, capsys):
    assert command(path, "--group", "obs", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found) == ["delivery", "files", "ok", "problem", "shuffle", "store", "suggestions", "unreadable"]
    assert sorted(found["files"][0]) == ["attributes", "columns", "file_bytes", "group", "path", "refused", "values"]
    image = found["files"][0]["columns"][0]
    assert len(image.pop("advice")) == 1
    assert image == {
        "name": "image", "kind": "number", "dtype": "uint8", "rows": 2000, "row_shape": [3, 8, 8], "storage": "chunked",
        "chunk_shape": [1500, 3, 8, 8], "pipeline": ["shuffle", "deflate 4"], "stored_bytes": 604, "real_bytes": 384000,
        "direct": True, "enum": {}, "left_out": None, "follows_cf": False, "is_slow": True,
        "integer_fields": [],
    }  # fmt: skip
    assert found["delivery"]["columns"]["split"] == "float32 (40,)"


def test_several_files(path, other, tmp_path, capsys):
    (tmp_path / "c.h5").write_bytes(b"nothing")
    assert command(str(tmp_path / "*.h5")) == 1
    shown = capsys.readouterr().out
    assert "2 files, " in shown
    assert f"1 file cannot be opened:\n  {tmp_path / 'c.h5'}: NotHDF5Error" in shown
    assert "read_h5 refuses this:\n  SchemaMismatchError: " in shown
    report = inspect_files(FileOptions.of([path, other]))
    assert (report.delivery, report.problem.error, report.ok) == (None, "SchemaMismatchError", False)
    alike = inspect_files(replace(FileOptions.of([other]), paths=[other, other]))
    assert alike.ok
    assert alike.delivery.rows == 10


def test_columns_beside_others_of_another_length(tmp_path, capsys):
    save(tmp_path / "a.h5", {"signal": np.zeros((20, 3)), "label": np.arange(20), "channels": np.arange(3)})
    path = str(tmp_path / "a.h5")
    assert command(path) == 0  # a call is shown that reads it
    assert "read_h5 refuses this:" in capsys.readouterr().out
    assert command(path, "--columns", "signal", "label", "--shuffle", "rows") == 0
    shown = capsys.readouterr().out
    assert "\n  channels " in shown
    assert "\n  20 rows of 32 B, in 5 blocks of 4\n  signal: float64 (3,), label: int64\n" in shown
    assert "20 chunks mixed in a window of 20 rows" in shown
    assert command(path, "--columns", "signl") == 1
    assert "UnknownColumnError: " in capsys.readouterr().out


def test_a_column_without_a_plugin_is_said_to_be_so(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4,))
        plist.set_filter(40_000, h5py.h5z.FLAG_OPTIONAL, ())
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((8,)), plist)
        file["y"] = np.arange(8)
    assert command(str(tmp_path / "a.h5")) == 1
    shown = capsys.readouterr().out
    assert "x: CodecUnavailableError: " in shown
    assert "Install the HDF5 plugin" in shown
    assert "read_h5 refuses this:\n  CodecUnavailableError" in shown


def shown_of(path, capsys, *options):
    status = command(str(path), *options)
    return status, capsys.readouterr().out.replace(str(path), "a.h5")


ODD = "red \x1b[31m\nnext"


def test_such_names_are_escaped_wherever_they_are_said(tmp_path, capsys):
    with h5py.File(tmp_path / "a\n.h5", "w", userblock_size=512) as file:
        file[ODD + "/advised"] = np.arange(3)
        file[ODD + "/left out"] = np.zeros(3, np.longdouble)
        file[ODD + "/single"] = 3
        file[ODD + "/gone"] = h5py.SoftLink("/" + ODD + "/nothing")
        file[ODD + "/enum"] = np.zeros(3, h5py.enum_dtype({ODD: 0}, "i1"))
        file["other"] = np.arange(4)
    _, shown = shown_of(tmp_path / "a\n.h5", capsys)
    assert "\x1b" not in shown
    assert not any(line.startswith(("next", "  next", ".h5", "  .h5")) for line in shown.splitlines())
    assert shown.count(r"red \x1b[31m\nnext") >= 5


# Many columns, and what is said of them ----------------------------------------------------------


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Write groups that are alike, each of another length."""
    path = tmp_path_factory.mktemp("demos") / "demos.h5"
    with h5py.File(path, "w") as file:
        for i in range(40):
            group, rows = file.create_group(f"data/demo_{i}"), 70 + i
            group["actions"] = np.zeros((rows, 7))
            group.create_dataset("obs/image", data=np.zeros((rows, 4, 4), "u1"), chunks=(1, 4, 4))
            group["obs/pose"] = np.zeros((rows, 3), "f4")
            group["model"] = f"demo {i}"
            group["words"] = np.full((rows, 2), b"ab")
            group["bad"] = h5py.SoftLink(f"/nothing {i}")
        file["data/summary"] = np.zeros(5)
    return path


def test_groups_that_are_alike_are_one(demos, capsys):
    status, shown = shown_of(demos, capsys)
    assert status == 0  # a call is shown
    lines = shown.splitlines()
    assert len(lines) < 40
    assert len(shown) < 8000
    assert lines[0].endswith(" 161 columns")
    assert lines[2:4] == ["  data/", "    demo_0 ... demo_39/ (40 groups alike)"]
    assert [line.split() for line in lines[4:8]] == [
        ["actions", "70..109", "float64", "7", "contiguous", "-", "200", "kB", "200", "kB"],
        ["obs/"],
        ["image", "70..109", "uint8", "4", "x", "4", "1", "-", "57.3", "kB", "57.3", "kB"],
        ["pose", "70..109", "float32", "3", "contiguous", "-", "43", "kB", "43", "kB"],
    ]
    assert lines[8].split()[:3] == ["words", "70..109", "string"]
    assert lines[9].split()[:3] == ["summary", "5", "float64"]
    assert lines[10] == "40 single values, which are no columns: data/demo_0 ... demo_39/model"
    assert "\nCannot be read:\n  data/demo_0 ... demo_39/bad: MissingSourceError: " in shown
    assert "\nAdvice:\n  data/demo_0 ... demo_39: 40 groups alike. If each is a sample, write read_h5(" in shown
    assert "\n  data/demo_0 ... demo_39/obs/image: 70 chunks of 16 bytes" in shown
    assert "SchemaMismatchError: " in shown  # links that lead nowhere are left out


def test_a_column_that_is_named_has_a_line_of_its_own(demos, capsys):
    status, shown = shown_of(demos, capsys, "--columns", "data/demo_7/actions", "data/demo_7/obs/pose")
    assert status == 0
    assert "\n    demo_0 ... demo_39/ (39 groups alike)\n" in shown
    assert "\n    demo_7/\n      actions  " in shown
    assert shown.endswith("  data/demo_7/actions: float64 (7,), data/demo_7/obs/pose: float32 (3,)\n")


def test_many_columns(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(300):
            file[f"d{i}"] = np.zeros(5)
            file[f"wide{i}"] = np.zeros((5, 1 + i))
            file["gene_" + "".join(chr(97 + int(digit)) for digit in str(i))] = np.zeros(5, "u1")
    status, shown = shown_of(tmp_path / "a.h5", capsys)
    assert status == 0
    lines = shown.splitlines()
    assert len(lines) == 2 + 60 + 1 + 2 + 3
    assert "\n  d0 ... d299 (300 columns alike)  " in shown
    assert "\n  gene_a ... gene_jj (300 columns alike)  " in shown
    assert lines[62] == "  and 242 more; --columns NAME shows one"
    assert (
        "  d0 ... d299: float64 (300 columns), gene_a ... gene_jj: uint8 (300 columns), wide0: float64 (1,), " in shown
    )
    assert lines[-1].endswith(", and 242 more")
    status, shown = shown_of(tmp_path / "a.h5", capsys, "--columns", "wide299", "d7")
    lines = shown.splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["d7", "wide299", "and"]
    assert lines[4] == "  and 898 more; --columns NAME shows one"
    assert lines[-1] == "  wide299: float64 (300,), d7: float64"


def test_values_that_are_not_what_they_seem(tmp_path, capsys):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        packed = file.create_dataset("packed", data=np.zeros(5, "i2"))
        packed.attrs["scale_factor"] = np.array([0.5])
        packed.attrs["add_offset"] = 273.15
        packed.attrs["_FillValue"] = np.int16(-99)
        file["missing"] = np.zeros(5)
        file["missing"].attrs["_FillValue"] = -1.0
        file["plain"] = np.zeros(5)
        file["plain"].attrs["_FillValue"] = np.nan
        file["plain"].attrs["scale_factor"] = "none"
        dimension = file.create_dataset("bare", (5,), ">f4")
        dimension.make_scale("This is a netCDF dimension but not a netCDF variable.         5")
        file["never"] = h5py.Empty("f4")
        file.create_dataset("unwritten", (5,), "f4")
        file["animal"] = np.zeros(5, h5py.enum_dtype({"dog": 1, "cat": 0}, "i1"))
        file["many"] = np.zeros(5, h5py.enum_dtype({f"c{i}": i for i in range(40)}, "i1"))
        file["flag"] = np.zeros(5, bool)
        h5py.h5d.create(file.id, b"bits", h5py.h5t.STD_B8LE, h5py.h5s.create_simple((5,))).write(
            h5py.h5s.ALL, h5py.h5s.ALL, np.zeros(5, "u1"), mtype=h5py.h5t.STD_B8LE
        )
        h5py.Dataset(
            h5py.h5d.create(
                file.id, b"arrays", h5py.h5t.array_create(h5py.h5t.STD_I32LE, (2,)), h5py.h5s.create_simple((5,))
            )
        )[:] = np.zeros((5, 2), "i4")
    before, _, _ = shown_of(tmp_path / "a.h5", capsys)[1].partition("read_h5 makes of it:")
    said = dict(line.strip().split(": ", 1) for line in before.splitlines() if ": " in line)
    facts = {
        "packed": ("scale_factor", "0.5", "273.15", "-99"), "missing": ("_FillValue", "-1.0"), "bare": ("netCDF",),
        "unwritten": ("never written",), "animal": ("cat=0, dog=1",), "many": ("c15=15", "24 more"),
        "bits": ("bit fields of 8 bits",), "arrays": ("arrays of int32, of shape (2,)",),
    }  # fmt: skip
    assert not [(name, each) for name, texts in facts.items() for each in texts if each not in said[name]]
    assert not {"plain", "flag"} & set(said)


def test_a_shuffle_is_told_where_it_is_asked_for(other, capsys):
    assert command(other) == 0
    assert "Shuffled" not in capsys.readouterr().out
    told = {"chunks": "by chunks", "balance:x": "by rows", "weights:x": "by rows", "by_length:x": "by length"}
    for written, fact in told.items():
        assert command(other, "--shuffle", written) == 0
        assert fact in capsys.readouterr().out.partition("Shuffled:")[2]
    for written, error in (("lengths:x", "OptionError"), ("balance:y", "UnknownColumnError")):
        assert command(other, "--shuffle", written) == 1
        assert error in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_imports_no_more_than_it_needs():
    code = "import sys, ray_h5.inspect.text; print(sorted({'ray', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_filters_of_groups_are_shown(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "ab":
            file.create_dataset(f"{name}/x", data=np.zeros((8, 3)), chunks=(4, 3), compression="gzip")
    (report,) = inspect_files(FileOptions.of(str(tmp_path / "a.h5"), rows=Groups("*"))).files
    assert [(column.name, column.pipeline) for column in report.columns] == [("x", ("deflate 4",))]


# Advice ------------------------------------------------------------------------------------------

GZIP = FilterPipeline((FilterStep(1, "deflate", (4,)),))
BLOSC2 = FilterPipeline((FilterStep(32026, "blosc2"),))


def layout(shape, chunk_shape=None, pipeline=GZIP, *, storage="chunked", direct=True, kind="number", dtype="f4"):
    type_ = ValueType(kind, np.dtype(dtype), shape[1:])
    how = {"storage": storage, "pipeline": pipeline, "offset": 0, "item_bytes": 4, "direct": direct}
    return ColumnLayout("x", type_, shape[0], chunk_shape, **how)


NONE = FilterPipeline()
by_h5py = layout((100, 10**4), (1, 10**4), direct=False)
odd = replace(by_h5py, file_type=b"\x08\x08", odd_type="bit fields of 8 bits")
ADVICE = [
    ("fine", layout((1000, 43, 300), (1, 43, 300)), 10**7, []),
    ("contiguous", layout((10**6,), None, NONE, storage="contiguous"), 4 * 10**6, []),
    ("few tiny chunks", layout((30,), (1,)), 60, []),
    ("many tiny chunks", layout((3000,), (1,)), 6000, ["3000 chunks of 4 bytes"]),
    ("large chunks, read by row", layout((10**6, 64), (4096, 64), NONE), 256 * 10**6, []),
    ("large chunks, decoded", layout((10**6, 64), (4096, 64)), 10**6, ["a chunk holds 4096 rows"]),
    ("all rows in one chunk", layout((4096, 64), (4096, 64)), 10**5, ["a chunk holds 4096 rows"]),
    ("many rows, but small", layout((10**6,), (16384,)), 10**5, []),
    ("huge", layout((10**4, 10**5), (800, 10**5)), 10**5, ["a chunk is 305 MiB"]),
    ("split", layout((10**4, 10**4), (10**2, 10**3)), 10**5, ["a chunk holds 100", "spread over 10 chunks"]),
    ("noise", layout((100, 10**4), (1, 10**4)), 4 * 10**6, ["saves nothing"]),
    ("never written", layout((100, 10**4), (1, 10**4)), 0, ["was never written"]),
    ("no rows", layout((0, 10), (1, 10)), 0, []),
    ("no width", layout((5, 0), None, NONE, storage="contiguous"), 0, []),
    ("by h5py", layout((100, 10**4), (1, 10**4), BLOSC2), 10**5, ["it went through blosc2"]),
    ("an odd type", odd, 10**5, ["type in the file is bit fields of 8"]),
    ("elsewhere", replace(by_h5py, sources=(("b.h5", None),)), 10**5, []),
    ("virtual", layout((100,), None, NONE, storage="virtual", direct=False), 0, []),
    ("compact", layout((10,), None, NONE, storage="compact", direct=False), 40, []),
    ("strings", layout((100,), None, NONE, storage="contiguous", direct=False, kind="string", dtype="O"), 1600, []),
    ("packed strings", layout((10**5,), (10**4,), kind="string", direct=False, dtype="O"), 10**5, []),
]  # fmt: skip


@pytest.mark.parametrize(("column", "stored", "expected"), [each[1:] for each in ADVICE], ids=[a[0] for a in ADVICE])
def test_advice(column, stored, expected):
    found = [*advice(column, stored, ColumnNotes())]
    assert len(found) == len(expected), found
    for text, part in zip(found, expected, strict=True):
        assert part in text


def test_row_kinds_on_the_command_line(tmp_path, capsys):
    path = str(tmp_path / "demos.h5")
    with h5py.File(path, "w") as file:
        for number in range(3):
            file[f"data/demo_{number}/actions"] = np.zeros((5 + number, 7))
            file[f"data/demo_{number}"].attrs["num_samples"] = 5 + number
    groups = ["inspect", path, "--groups", "data/demo_*"]
    assert main([*groups, "--attrs", "num_samples", "--key", "demo"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"actions +3 +float64 +\? x 7", shown)
    assert "demo: string, num_samples: int64, actions: float64 (?, 7)" in shown
    assert main([*groups, "--windows", "actions=-1:3", "--pad", "edge", "drop"]) == 0
    assert "actions: float64 (4, 7), actions_is_pad: bool (4,)" in capsys.readouterr().out
    assert main(["index", path, "--groups", "data/demo_*", "--dir", str(tmp_path / "index")]) == 0
    assert "3 rows, 1 column" in capsys.readouterr().out
    assert main([*groups, "--windows", "actions=many"]) == 2
    assert "expected COLUMN=START:STOP" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("starts", "counts"), [([0, 3, 9], [3, 5, 4]), ([0, 3, 9], [3, 6, 6]), ([0, 3], [3, 9])], ids=["gap", "past", "few"]
)
def test_ranges_that_are_not_all_of_the_values_are_not_suggested(tmp_path, starts, counts):
    """Nothing says that these integers are about these values."""
    save(tmp_path / "a.h5", {"x": np.zeros(13), "start": starts, "count": counts, "label": np.zeros(3)})
    assert "ragged" not in to_text(inspect_files(FileOptions.of(tmp_path / "a.h5")))
    with pytest.raises(SchemaMismatchError) as raised:
        H5Dataset(tmp_path / "a.h5")
    assert "ragged" not in str(raised.value)


def test_a_pattern_matches_the_samples_of_all_files(tmp_path):
    """Those of the first file alone have a number of two digits, or an id with a one in front."""
    for number, names in enumerate((["case_10", "case_11"], ["case_1", "case_12"], ["case_30"])):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for name in names:
                file[f"data/{name}/x"] = np.zeros(3 + number)
            file["data/summary/y"] = np.zeros(2, "i4")
    shown = to_text(inspect_files(FileOptions.of(tmp_path)))
    assert "case_1 ... case_30: 5 groups alike. If each is a sample, write read_h5(paths, rows=ray_h5.Groups(" in shown
    assert "this leaves out data/summary" in shown
    (pattern,) = {*re.findall(r"rows=ray_h5.Groups\('([^)]*)'\)", shown)}
    assert len(H5Dataset(tmp_path, rows=Groups(pattern))) == 5


def test_windows_of_one_more_observation_than_actions_are_all_transitions(tmp_path, capsys):
    lengths = (9, 7, 8)
    whole = {f"demo_{i}/{name}": np.arange(steps) for i, steps in enumerate(lengths) for name in ("actions", "rewards")}
    after = {f"demo_{i}/obs/x": np.arange(steps + 1) for i, steps in enumerate(lengths)}
    path = save(tmp_path / "a.h5", {**whole, **after})
    assert main(["inspect", path]) == 0
    call = re.search(r"add windows=ray_h5\.(Windows\(.*?\)), and leave", capsys.readouterr().out)
    rows = H5Dataset(path, rows=Groups("demo_*"), windows=eval(call[1], {"Windows": Windows, "range": range}))
    assert [row["obs/x"].tolist() for row in rows] == [[i, i + 1] for steps in lengths for i in range(steps)]


def test_a_call_that_is_refused_is_not_suggested(tmp_path):
    """The groups are alike in this file, and another file has a text where this one has numbers."""
    for number, values in enumerate((np.zeros(3), np.array([b"a", b"b"]))):
        save(tmp_path / f"{number}.h5", {f"demo_{i}/x": values for i in range(6)})
    report = inspect_files(FileOptions.of(tmp_path))
    assert report.problem is not None
    assert not any("Groups" in each.options for each in report.suggestions)
    assert command(str(tmp_path)) == 1


def test_files_are_rows(tmp_path, capsys):
    for i in range(2):
        save(tmp_path / f"slide_{i}.h5", {"features": np.zeros((5 + i, 3)), "label": i})
    assert main(["inspect", str(tmp_path), "--each-file", "--key", "slide"]) == 0
    assert "2 rows" in capsys.readouterr().out


def test_patches_are_rows(tmp_path, capsys):
    save(tmp_path / "scan.h5", {"raw": np.zeros((9, 9, 9), "f4")})
    given = ["inspect", str(tmp_path), "--patches", "raw=4,4,4", "--key", "scan"]
    assert main(given) == 0
    assert "27 rows" in capsys.readouterr().out
    assert main([*given, "--patch-stride", "1,5,5"]) == 0
    assert "24 rows" in capsys.readouterr().out
    assert main([*given, "--per-file", "7"]) == 0
    assert "7 rows" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--per-file", "7"]) == 1
    assert "pass --patches too" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path), "--patches", "raw=a"]) == 2
    assert "raw=64,64,64" in capsys.readouterr().err


def test_files_that_cannot_be_read_are_left_out_if_an_option_says_so(tmp_path, capsys):
    for name in "ab":
        save(tmp_path / f"{name}.h5", {"x": np.arange(6000)})
    (tmp_path / "b.h5").write_bytes((tmp_path / "b.h5").read_bytes()[:3000])
    assert main(["inspect", str(tmp_path)]) == 1
    assert "read_h5 makes of the others, with ignore_unreadable_files=True:" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--ignore-unreadable-files"]) == 0


def test_what_groups_take_is_unknown_and_not_made_up(tmp_path, capsys):
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            for name in "ab":
                data = np.zeros(1000 + 10 * number, "f4")
                file.create_dataset(f"{name}/x", data=data, compression="gzip")
    assert main(["inspect", str(tmp_path), "--groups", "*", "--json"]) == 0
    (first, _) = json.loads(capsys.readouterr().out)["files"]
    (column,) = first["columns"]
    assert (column["storage"], column["chunk_shape"], column["stored_bytes"]) == ("", None, None)
    assert main(["inspect", str(tmp_path), "--groups", "*"]) == 0
    text = capsys.readouterr().out
    assert "all have the columns of the first" in text
    assert "contiguous" not in text
    assert re.search(r"x +2 +float32 +1000 +\? +(deflate 4|\?) +\? +8 kB", text)


def test_reversed_columns_take_what_their_datasets_take(tmp_path, capsys):
    with h5py.File(tmp_path / "m.h5", "w") as file:
        stored = file.create_dataset("x", data=np.zeros((3, 5000), "f4"), compression="gzip").id.get_storage_size()
    assert main(["inspect", str(tmp_path / "m.h5"), "--axes", "reversed", "--json"]) == 0
    (column,) = json.loads(capsys.readouterr().out)["files"][0]["columns"]
    assert (column["rows"], column["stored_bytes"]) == (5000, stored)
