"""`repack`: the same values in other layouts, safely."""

import json
import os

import h5py
import hdf5plugin
import numpy as np
import pytest

from ray_h5 import Grid, Groups, Sidecar, Windows, ragged, repack
from ray_h5.errors import (
    NotHDF5Error,
    NullValueError,
    OptionError,
    OutputExistsError,
    PredicateError,
    StaleIndexError,
    UnsupportedColumnError,
    VerifyError,
    WriteFailedError,
)
from ray_h5.index.file_options import FileOptions
from ray_h5.order.plan_reads import read_rows
from ray_h5.order.read_plan import make_plan
from ray_h5.torch_data import H5Dataset
from ray_h5.writing.output import OutputFile
from ray_h5.writing.repack import row_batches as rows_module
from tests.hdf5.h5kit import texts_of_pandas_3
from tests.kit.fault_server import FaultServer
from tests.remote.kit import options_of
from tests.writing.test_copying import contents, everything

ROWS = 60


def write_files(folder, count=3, rows=ROWS):
    """Files whose rows are known by their number; `wide` has one chunk."""
    folder.mkdir(exist_ok=True)
    paths = []
    for i in range(count):
        ids = np.arange(i * rows, (i + 1) * rows)
        with h5py.File(folder / f"f{i}.h5", "w") as file:
            file.attrs["made by"] = "me"
            wide = np.repeat(ids[:, None], 9000, axis=1).astype("f4")
            file.create_dataset("wide", data=wide, chunks=(rows, 9000), compression="gzip", compression_opts=1)
            file["wide"].attrs["unit"] = "mV"
            file.create_dataset("id", data=ids, chunks=(7,), maxshape=(None,))
            file.create_dataset(
                "label", data=(ids % 3).astype("u1"), dtype=h5py.enum_dtype({"a": 0, "b": 1, "c": 2}, "u1")
            )
            file["name"] = np.array([f"row {k}" for k in ids], "S8")
            file.create_dataset("text", data=[f"{'ü' * (k % 3)}{k}" for k in ids], dtype=h5py.string_dtype())
        paths.append(str(folder / f"f{i}.h5"))
    return paths


def read_all(paths, **options):
    index = FileOptions.of(paths, **options).index()
    plan = make_plan(index, [index.delivered[name] for name in index.names])
    return read_rows(plan, np.arange(plan.num_rows)).arrays


def check_rows(arrays, ids):
    assert arrays["id"].tolist() == list(ids)
    assert (arrays["wide"] == np.asarray(ids)[:, None]).all()
    assert arrays["label"].tolist() == [k % 3 for k in ids]
    assert [str(each, "utf-8") for each in arrays["name"]] == [f"row {k}" for k in ids]
    assert [str(each, "utf-8") for each in arrays["text"]] == [f"{'ü' * (k % 3)}{k}" for k in ids]


def leftovers(folder):
    return [each for each in os.listdir(folder) if each.startswith(".")]


def test_by_default_slow_arrays_change_and_all_else_stays(tmp_path):
    source, out = str(tmp_path / "a.h5"), tmp_path / "out.h5"
    everything(source)
    with h5py.File(source, "a") as file:
        file.create_dataset("slow", data=np.zeros((300, 5000), "f4"), chunks=(300, 5000), compression="gzip")
    found = repack(source, out)
    one, other = contents(source), contents(str(out))
    assert one == other
    with h5py.File(source) as before, h5py.File(out) as after:
        assert after["slow"].chunks == (3, 5000)
        assert after["images/x"].chunks == (2048 // 2, 8, 8)[:0] or after["images/x"].chunks[1:] == (
            8,
            8,
        )  # rows were divided
        assert after["zstd"].id.read_direct_chunk((0, 0)) == before["zstd"].id.read_direct_chunk((0, 0))
    assert found.paths == [str(out)]
    assert found.chunks_after > 0
    assert found.bytes_before == os.path.getsize(source)
    assert found.bytes_after == os.path.getsize(out)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("codec", ["zstd", "lz4", "gzip", "blosc", "none", "keep"])
def test_codecs_and_chunks(tmp_path, codec):
    paths = write_files(tmp_path / "in", 2)
    repack(paths, tmp_path / "out", codec=codec, chunk_bytes="72kB")
    outs = [str(tmp_path / "out" / f"f{i}.h5") for i in range(2)]
    check_rows(read_all(outs), range(2 * ROWS))
    with h5py.File(outs[0]) as file:
        assert file["wide"].chunks == (2, 9000)
        assert file["wide"].attrs["unit"] == "mV"
        assert file.attrs["made by"] == "me"
        assert h5py.check_enum_dtype(file["label"].dtype) == {"a": 0, "b": 1, "c": 2}


def test_chosen_rows_keep_types_and_attributes(tmp_path):
    paths = write_files(tmp_path / "in")
    found = repack(paths, tmp_path / "out", where="label == 1 and id < 100")
    wanted = [k for k in range(100) if k % 3 == 1]
    assert found.rows == len(wanted)
    assert sorted(os.listdir(tmp_path / "out")) == ["f0.h5", "f1.h5"]  # none of the third
    check_rows(read_all(found.paths), wanted)
    with h5py.File(found.paths[0]) as file:
        assert file["wide"].attrs["unit"] == "mV"
        assert file.attrs["made by"] == "me"
        assert h5py.check_enum_dtype(file["label"].dtype) == {"a": 0, "b": 1, "c": 2}
        assert file["name"].dtype == "S8"


@pytest.mark.parametrize(("option", "sizes"), [({"rows_per_file": 70}, [70, 70, 40]), ({"files": 4}, [45] * 4)])
def test_files_of_a_size(tmp_path, option, sizes):
    paths = write_files(tmp_path / "in")
    found = repack(paths, tmp_path / "out", **option)
    assert [len(read_all(path)["id"]) for path in found.paths] == sizes
    assert [os.path.basename(path) for path in found.paths] == [f"part-{i:05d}.h5" for i in range(len(sizes))]
    check_rows(read_all(found.paths), range(3 * ROWS))


@pytest.mark.parametrize("run_bytes", [1 << 30, 2_000_000])
def test_shuffled_rows(tmp_path, monkeypatch, run_bytes):
    monkeypatch.setattr(rows_module, "RUN_BYTES", run_bytes)
    paths = write_files(tmp_path / "in")
    one = read_all(repack(paths, tmp_path / "1", shuffle_rows=5, rows_per_file=50).paths)
    two = read_all(repack(paths, tmp_path / "2", shuffle_rows=5, rows_per_file=50).paths)
    other = read_all(repack(paths, tmp_path / "3", shuffle_rows=6).paths)
    order = one["id"].tolist()
    assert sorted(order) == list(range(3 * ROWS))
    assert order == two["id"].tolist() != other["id"].tolist()
    assert np.abs(np.corrcoef(order, range(3 * ROWS))[0, 1]) < 0.3
    check_rows(one, order)
    assert leftovers(tmp_path / "1") == []


def test_groups_become_rows(tmp_path):
    path = tmp_path / "demos.h5"
    lengths = [3, 1, 4]
    with h5py.File(path, "w") as file:
        for i, n in enumerate(lengths):
            file[f"data/demo_{i}/actions"] = np.full((n, 2), i, "f4")
    found = repack(path, tmp_path / "out.h5", rows=Groups("data/demo_*", key="demo"))
    arrays = read_all(found.paths)
    assert [each.shape for each in arrays["actions"]] == [(n, 2) for n in lengths]
    assert [each[0, 0] for each in arrays["actions"]] == [0, 1, 2]
    assert [str(each, "utf-8") for each in arrays["demo"]] == [f"data/demo_{i}" for i in range(3)]


def test_attributes_of_groups_that_are_columns_are_not_lost(tmp_path):
    path, rows = tmp_path / "a.h5", Groups("ep_*", attrs=["success"], key="ep")
    with h5py.File(path, "w") as file:
        for number in range(3):
            file[f"ep_{number}/x"] = np.full(number + 2, number)
            file[f"ep_{number}"].attrs["success"] = number > 0
    repack(path, tmp_path / "out.h5", rows=rows)
    read = H5Dataset(tmp_path / "out.h5")
    assert [(row["ep"], row["success"], row["x"].tolist()) for row in read] == [
        ("ep_0", False, [0, 0]),
        ("ep_1", True, [1, 1, 1]),
        ("ep_2", True, [2, 2, 2, 2]),
    ]
    with pytest.raises(UnsupportedColumnError, match="cannot keep attributes of 'ep_0', 'ep_1', 'ep_2'"):
        repack(path, tmp_path / "b.h5", rows=Groups("ep_*"))


@pytest.mark.parametrize("column", ["number", "text", "fixed"])
def test_a_group_that_lacks_a_column_is_named(tmp_path, column):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            group = file.create_group(f"g{number}")
            group["y"] = np.arange(3)
            if number != 1:
                group["number"], group["fixed"] = np.arange(number + 2.0), np.array([b"a", b"b"])
                group.create_dataset("text", data=["a", "b"], dtype=h5py.string_dtype())
    rows = Groups("g*", missing="null")
    with pytest.raises(NullValueError, match=rf"a\.h5, row 1: column '{column}' is missing"):
        repack(tmp_path / "a.h5", tmp_path / "out.h5", columns=[column], rows=rows, drop=True)
    repack(tmp_path / "a.h5", tmp_path / "out.h5", columns=["y"], rows=rows, drop=True)


def test_lists_with_missing_values_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(3):
            group = file.create_group(f"g{number}/n")
            group.attrs.update({"encoding-type": "nullable-integer", "encoding-version": "0.1.0"})
            group["values"], group["mask"] = np.arange(number + 2), np.arange(number + 2) == 1
    with pytest.raises(UnsupportedColumnError, match=r"a\.h5, row 0: column 'n' has lists with missing.*columns="):
        repack(tmp_path / "a.h5", tmp_path / "b.h5", rows=Groups("g*"))


def test_sparse_rows_and_categories(tmp_path):
    anndata = pytest.importorskip("anndata")
    import pandas as pd
    from scipy import sparse

    matrix = sparse.random(50, 20, 0.2, "csr", "f4", random_state=0)
    kinds = pd.Categorical(["b" if i % 3 else "a" for i in range(50)])
    data = anndata.AnnData(matrix, obs=pd.DataFrame({"kind": kinds}, index=[f"c{i}" for i in range(50)]))
    data.write_h5ad(tmp_path / "a.h5ad")
    whole = repack(tmp_path / "a.h5ad", tmp_path / "whole.h5ad", codec="zstd", chunk_rows=64)
    again = anndata.read_h5ad(whole.paths[0])
    assert (matrix != again.X).nnz == 0
    assert again.obs["kind"].tolist() == list(kinds)
    found = repack(tmp_path / "a.h5ad", tmp_path / "b.h5", where="col('obs/kind') == 'a'", columns=["X", "obs/kind"])
    arrays = read_all(found.paths)
    dense = np.zeros((len(arrays["X"]), 20), "f4")
    for i, row in enumerate(arrays["X"]):
        dense[i, row.indices] = row.data
    assert (dense == matrix.toarray()[::3]).all()
    assert {str(each, "utf-8") if isinstance(each, bytes) else each for each in arrays["obs/kind"]} == {"a"}


def test_casts_and_columns(tmp_path):
    paths = write_files(tmp_path / "in")
    found = repack(paths, tmp_path / "out", columns=["wide", "id"], dtypes={"wide": "f2"}, page="64KiB")
    with h5py.File(found.paths[0]) as file:
        assert set(file) == {"wide", "id"}
        assert file["wide"].dtype == "f2"
        assert file.id.get_create_plist().get_file_space_page_size() == 65536


def test_what_cannot_be_kept_is_refused_by_name(tmp_path):
    source = str(tmp_path / "a.h5")
    everything(source, link=True)
    with pytest.raises(UnsupportedColumnError, match=r"'elsewhere'.*drop=True"):
        repack(source, tmp_path / "b.h5")
    assert os.listdir(tmp_path) == ["a.h5"]
    assert len(repack(source, tmp_path / "b.h5", drop=True).dropped) == 4
    paths = write_files(tmp_path / "in")
    with h5py.File(paths[1], "a") as file:
        file.attrs["made by"] = "you"
    with pytest.raises(UnsupportedColumnError, match="'made by' of the file, which differs"):
        repack(paths, tmp_path / "out", files=1)
    repack(paths, tmp_path / "out", files=1, drop=True)


def test_outputs_that_are_there(tmp_path):
    paths = write_files(tmp_path / "in", 2)
    out = tmp_path / "out"
    repack(paths, out)
    with pytest.raises(OutputExistsError, match=r"f0.h5.*overwrite=True"):
        repack(paths, out, codec="lz4")
    repack(paths, out, codec="lz4", overwrite=True)
    with pytest.raises(OptionError, match="is an input"):
        repack(paths, tmp_path / "in", overwrite=True)
    with pytest.raises(OptionError, match="name of a folder"):
        repack(paths, tmp_path / "one.h5")
    link = tmp_path / "link.h5"
    link.symlink_to(paths[0])
    with pytest.raises(OptionError, match="is an input"):
        repack(paths[0], link, overwrite=True)
    check_rows(read_all(paths), range(2 * ROWS))


def test_files_that_cannot_be_read_are_left_out_if_the_user_says_so(tmp_path, caplog):
    paths, out = write_files(tmp_path / "in"), tmp_path / "out"
    (tmp_path / "in/f1.h5").write_bytes(b"no HDF5")
    with pytest.raises(NotHDF5Error, match=r"f1\.h5"):
        repack(paths, out)
    assert not out.exists()
    repack(paths, out, ignore_unreadable_files=True)
    assert sorted(os.listdir(out)) == ["f0.h5", "f2.h5"]
    assert "left out 1 of 3 files" in caplog.text


def test_an_interrupted_repack_goes_on(tmp_path, monkeypatch):
    paths, out = write_files(tmp_path / "in"), tmp_path / "out"
    write, seen = OutputFile.close, []

    def fails(self):
        seen.append(os.path.basename(self.path))
        if len(seen) == 2:
            raise OSError(28, "full")
        write(self)

    monkeypatch.setattr(OutputFile, "close", fails)
    with pytest.raises(OSError, match="full"):
        repack(paths, out)
    assert [each for each in os.listdir(out) if not each.startswith(".")] == ["f0.h5"]
    assert leftovers(out) == [".ray_h5_repack"]
    before = os.stat(out / "f0.h5")
    with pytest.raises(OptionError, match="other options"):
        repack(paths, out, resume=True, codec="lz4")
    found = repack(paths, out, resume=True)
    assert found.kept == [str(out / "f0.h5")]
    assert os.stat(out / "f0.h5") == before
    check_rows(read_all(found.paths), range(3 * ROWS))
    assert leftovers(out) == []


def test_a_first_failure_leaves_nothing(tmp_path, monkeypatch):
    paths = write_files(tmp_path / "in")
    monkeypatch.setattr(OutputFile, "verify", lambda _: (_ for _ in ()).throw(VerifyError("differs")))
    with pytest.raises(VerifyError):
        repack(paths, tmp_path / "out")
    assert os.listdir(tmp_path) == ["in"]
    repack(paths, tmp_path / "out", verify=False)


def test_two_repacks_into_one_place(tmp_path):
    paths, out = write_files(tmp_path / "in"), tmp_path / "out"
    errors = []

    def meanwhile(*_):
        if not errors:
            with pytest.raises(OutputExistsError, match="another repack") as error:
                repack(paths, out, overwrite=True)
            errors.append(error)

    repack(paths, out, progress=meanwhile)
    check_rows(read_all(str(out)), range(3 * ROWS))


@pytest.mark.parametrize("options", [{}, {"where": "id >= 0"}])
def test_a_source_that_changes_meanwhile(tmp_path, options):
    paths = write_files(tmp_path / "in", 1)

    def change(*_):
        with open(paths[0], "ab") as file:
            file.write(b"more")

    with pytest.raises(StaleIndexError):
        repack(paths, tmp_path / "out", progress=change, **options)
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


def test_options_are_checked(tmp_path):
    paths = write_files(tmp_path / "in", 1)
    for options, said in [
        ({"codec": "lzma"}, "codec='lzma'"), ({"chunk_rows": 0}, "chunk_rows=0"),
        ({"chunk_rows": 1, "chunk_bytes": 1}, "expected one of them"), ({"page": 100}, "page=100"),
        ({"files": 1, "rows_per_file": 1}, "expected one of them"), ({"shuffle_rows": -1}, "shuffle_rows=-1"),
        ({"codec": "keep", "files": 1}, "codec='keep'"),
    ]:  # fmt: skip
        with pytest.raises(OptionError, match=said):
            repack(paths, tmp_path / "out", **options)
    for where in ("label = 1", "label", "f(label) == 1", "1 == 1", "label == name", "label in 3", "__import__('os')"):
        with pytest.raises(PredicateError):
            repack(paths, tmp_path / "out", where=where)
    with pytest.raises(PredicateError, match="none of"):
        repack(paths, tmp_path / "out", where="id < 0")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_named(tmp_path):
    paths = write_files(tmp_path / "in", 1)
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(WriteFailedError, match=r"disk is full|File too large"):
            repack(paths, tmp_path / "out", codec="none", chunk_rows=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == ["in"]


def test_memory_is_bounded_and_chunks_are_decoded_once(tmp_path, monkeypatch):
    """A file of 20 times the bound of a batch; each input chunk is in one batch."""
    monkeypatch.setattr(rows_module, "SLAB_BYTES", 100 * 36_000)
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("wide", data=np.zeros((2000, 9000), "f4"), chunks=(80, 9000), **hdf5plugin.LZ4())
    sizes = []
    read = rows_module.read_rows
    monkeypatch.setattr(
        rows_module, "read_rows", lambda plan, ids: sizes.append((len(ids), int(ids[0]))) or read(plan, ids)
    )
    repack(path, tmp_path / "out", rows_per_file=2000, verify=False)
    assert {first % 80 for _, first in sizes} == {0}
    assert max(rows for rows, _ in sizes) <= 160


def test_the_journal_is_small_and_plain(tmp_path):
    paths, out = write_files(tmp_path / "in"), tmp_path / "out"
    texts = []

    def look(*_):
        texts.append((out / ".ray_h5_repack/journal.json").read_text())

    repack(paths, out, progress=look)
    assert set(json.loads(texts[-1])) == {"plan", "done"}
    assert len(json.loads(texts[-1])["done"]) == 3


def test_what_was_gained_is_measured(tmp_path):
    paths = write_files(tmp_path / "in", 1)
    found = repack(paths, tmp_path / "out", measure=True)
    assert found.rate_before > 0
    assert found.rate_after > 0
    assert "rows/s before" in str(found)


def test_files_that_need_options_are_copied_and_not_measured(tmp_path):
    path, out = tmp_path / "a.h5", tmp_path / "out.h5"
    images = np.random.default_rng(0).integers(0, 40, (120, 2, 48, 48)).astype("i2")
    with h5py.File(path, "w") as file:
        file.create_dataset("slices", data=images, chunks=(40, 2, 48, 48), compression="gzip")
        file["channel_names"] = [b"t1", b"t2"]
    found = repack(path, out, measure=True)
    with h5py.File(out) as file:
        assert file["slices"].chunks[0] < 40
        assert (file["slices"][:] == images).all()
        assert file["channel_names"][:].tolist() == [b"t1", b"t2"]
    assert found.rewritten == 1
    assert found.rate_before == found.rate_after == 0
    assert "was not measured" in str(found)
    assert "one common first axis, found 2 lengths" in str(found)


@pytest.mark.parametrize("compression", ["gzip", "lzf", None])
def test_by_default_chunks_of_many_rows_become_small(tmp_path, compression):
    """The layout that h5py's users write: 64 images of 3 KiB a chunk."""
    path, out = tmp_path / "a.h5", tmp_path / "out.h5"
    images = np.random.default_rng(0).integers(0, 40, (640, 32, 32, 3)).astype("u1")
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=images, chunks=(64, 32, 32, 3), compression=compression)
        file["label"] = np.arange(640)
    found = repack(path, out, measure=True)
    with h5py.File(out) as file:
        assert file["image"].chunks == ((64 if compression is None else 21), 32, 32, 3)
        assert (file["image"][:] == images).all()
    assert found.rewritten == (compression is not None)
    assert bool(found.rate_before) == (compression is not None)
    assert ("no array changed" in str(found)) == (compression is None)
    again = repack(out, tmp_path / "again.h5", measure=True)
    assert again.rewritten == 0
    assert "no array changed" in str(again)
    assert "x)" not in str(again)


def test_the_first_turn_of_what_was_gained_counts_for_neither_side(tmp_path, monkeypatch):
    rates = iter([10, 90, 80, 100])  # before, after, after, before: the first is that of a cold process
    monkeypatch.setattr("ray_h5.writing.repack.repack.shuffled_rate", lambda _: next(rates))
    found = repack(write_files(tmp_path / "in", 1), tmp_path / "out", measure=True)
    assert (found.rate_before, found.rate_after) == (100, 90)


def steps_file(path):
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file["x"] = rng.standard_normal((40, 3)).astype("f4")
        file["grid"] = rng.integers(0, 9, (5, 8, 2))
        file["end"] = np.arange(40) % 10 == 9
        file["kind"] = np.arange(40) // 10
        file["kind"].attrs["said"] = "kept"
        file["packed"] = rng.integers(0, 99, 40).astype("i2")
        file["packed"].attrs.update({"scale_factor": 0.5, "add_offset": 3.0})
        file["when"] = np.arange(40)
        file["when"].attrs["units"] = "days since 2000-01-01"
        file["events/x"] = np.arange(100.0)
        file["events/offsets"] = np.concatenate([[0], np.sort(rng.integers(0, 100, 39)), [100]])
        file["complex"] = np.arange(40) * 1j
        file["records"] = np.zeros(40, [("a", "i4"), ("b", "S3")])
        file["flag"] = np.arange(40) % 3 == 0
    return path


def same(one, other):
    if one.dtype == object:
        parts = [(a.indices, a.data) if hasattr(a, "indices") else a for a in one]
        others = [(b.indices, b.data) if hasattr(b, "indices") else b for b in other]
        return repr([np.asarray(a).tolist() if isinstance(a, np.ndarray) else a for a in parts]) == repr(
            [np.asarray(b).tolist() if isinstance(b, np.ndarray) else b for b in others]
        )
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


ROW_OPTIONS = {
    "windows": {"windows": Windows({"x": range(-1, 3)}, episode="kind"), "columns": ["x", "kind"]},
    "grid": {"rows": Grid(2), "columns": ["grid"]},
    "ragged": {"columns": [ragged("events/x", offsets="events/offsets"), "kind"]},
    "cf": {"decode_cf": True, "columns": ["packed", "when"]},
    "casts": {"dtypes": {"x": "f2", "kind": "u1"}, "columns": ["x", "kind", "complex", "records", "flag"]},
}


@pytest.mark.parametrize("name", ROW_OPTIONS)
@pytest.mark.parametrize("more", [{}, {"rows_per_file": 7}])
def test_rows_of_all_kinds_are_written(tmp_path, name, more):
    path = steps_file(tmp_path / "a.h5")
    options = ROW_OPTIONS[name]
    found = repack(path, tmp_path / "out", **options, **more, drop=True)
    expected, got = read_all(str(path), **options), read_all(found.paths)
    assert expected.keys() == got.keys()
    for column in expected:
        assert same(expected[column], got[column]), column


def test_tables_beside_the_files_become_columns(tmp_path):
    paths = write_files(tmp_path / "in", 2)
    (tmp_path / "t.csv").write_text("id,score\n" + "".join(f"{k},{k / 2}\n" for k in range(2 * ROWS)))
    found = repack(paths, tmp_path / "out", sidecar=Sidecar(tmp_path / "t.csv", on="id"), files=1, where="score < 10")
    arrays = read_all(found.paths)
    assert arrays["score"].tolist() == [k / 2 for k in range(20)]
    check_rows(arrays, range(20))


def test_a_paged_file_in_a_store_is_planned_with_two_requests(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "abcd":
            file.create_dataset(name, data=np.zeros((2000, 30)), chunks=(1, 30), compression="lzf")
    (tmp_path / "bkt").mkdir()
    repack(tmp_path / "a.h5", tmp_path / "bkt/b.h5", chunk_rows=2, codec="lz4", page="1MiB")
    with FaultServer(tmp_path) as server:
        assert FileOptions.of("s3://bkt/*.h5", storage_options=options_of(server)).index().num_rows == 2000
        gets = [each for each in server.requests() if each.method == "GET" and "list-type" not in each.query]
    assert len(gets) == 2


def test_values_of_rows_that_cannot_be_read_are_not_copied_beside_chosen_rows(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(10)
        file["long"] = np.arange(10).astype("g")
        file["longs"] = np.arange(3).astype("g")
    with pytest.raises(UnsupportedColumnError, match=r"cannot keep 'long', whose rows cannot be read\. Pass drop"):
        repack(tmp_path / "a.h5", tmp_path / "b.h5", where="x >= 5")
    assert repack(tmp_path / "a.h5", tmp_path / "b.h5", where="x >= 5", drop=True).dropped
    with h5py.File(tmp_path / "b.h5") as file:
        assert {*file} == {"x", "longs"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("texts", [(), ("obs/_index", "var/_index")], ids=["", "pandas 3"])
def test_rows_of_tables_of_anndata_are_read_again(tmp_path, texts):
    anndata = pytest.importorskip("anndata")
    import pandas as pd
    import scipy.sparse as sp

    kinds = pd.Categorical(list("ab") * 10)
    obs = pd.DataFrame({"n": np.arange(20), "kind": kinds}, index=[f"c{i}" for i in range(20)])
    matrix = sp.random(20, 6, 0.4, format="csr", rng=np.random.default_rng(0))
    anndata.AnnData(matrix, obs, uns={"of": {"lab": 3}}).write_h5ad(tmp_path / "a.h5ad")
    texts_of_pandas_3(tmp_path / "a.h5ad", *texts)
    repack(tmp_path / "a.h5ad", tmp_path / "b.h5", where='col("obs/n") >= 13')
    before, after = H5Dataset(tmp_path / "a.h5ad"), H5Dataset(tmp_path / "b.h5")
    assert set(after.columns) == set(before.columns) == {"X", "obs/_index", "obs/n", "obs/kind"}
    for i in range(7):
        one, other = before[13 + i], after[i]
        assert [other[name] for name in ("obs/n", "obs/kind", "obs/_index")] == [
            one[name] for name in ("obs/n", "obs/kind", "obs/_index")
        ]
        np.testing.assert_array_equal(other["X"], one["X"])


def test_labels_are_written_as_numbers_and_measured(tmp_path):
    with h5py.File(path := tmp_path / "a.h5", "w") as file:
        file["kind"] = np.array([b"dog", b"cat", b"dog"], object)
    found = repack(path, tmp_path / "b.h5", labels={"kind": "auto"}, measure=True)
    assert found.rows == 3
    assert H5Dataset(tmp_path / "b.h5")[:].kind.tolist() == [1, 0, 1]


def test_files_that_are_paired_are_written_together(tmp_path):
    for name in ("x", "y"):
        with h5py.File(tmp_path / f"{name}_0.h5", "w") as file:
            file[name] = np.arange(3)
    repack(tmp_path / "x_0.h5", tmp_path / "b.h5", zip_files=tmp_path / "y_0.h5")
    assert H5Dataset(tmp_path / "b.h5").columns == ["x", "y"]
