"""`repack`: the same values in other layouts, safely."""

import fcntl
import os
import tracemalloc

import h5py
import numpy as np
import pytest

from ray_h5 import repack
from ray_h5.errors import (
    NotHDF5Error,
    OptionError,
    OutputExistsError,
    StaleIndexError,
    UnsupportedColumnError,
    VerifyError,
)
from ray_h5.index.file_options import FileOptions
from ray_h5.writing import file_writer
from ray_h5.writing.file_writer import OutputFile
from ray_h5.writing.repack import copy_file
from ray_h5.writing.repack import repack as repacking
from tests.index.kit import read_all
from tests.kit.fault_server import FaultServer
from tests.kit.files import save
from tests.remote.kit import options_of
from tests.writing.test_copying import contents, everything

ROWS = 60


@pytest.fixture(autouse=True)
def measured_briefly(monkeypatch):
    monkeypatch.setattr(repacking, "_LEAST_SECONDS", 0.0)


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


def test_sparse_matrices_and_categories(tmp_path):
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


def test_what_cannot_be_kept_is_refused_by_name(tmp_path):
    source = str(tmp_path / "a.h5")
    everything(source, link=True)
    with pytest.raises(UnsupportedColumnError, match=r"'elsewhere'.*drop=True"):
        repack(source, tmp_path / "b.h5")
    assert os.listdir(tmp_path) == ["a.h5"]
    assert len(repack(source, tmp_path / "b.h5", drop=True).dropped) == 4


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
    again = repack(paths, out, resume=True)  # a job that always passes it
    assert again.kept == found.paths
    with pytest.raises(OptionError, match="other options"):
        repack(paths, out, resume=True, codec="lz4")
    (out / "f1.h5").unlink()
    assert len(repack(paths, out, resume=True).kept) == 2
    check_rows(read_all(found.paths), range(3 * ROWS))
    repack(paths, out, overwrite=True)
    assert leftovers(out) == []
    with pytest.raises(OutputExistsError, match=r"no list of a repack.*overwrite=True to replace it, or write"):
        repack(paths, out, resume=True)


def test_a_file_that_is_made_meanwhile_stays(tmp_path, monkeypatch):
    (path,), out = write_files(tmp_path / "in", 1), tmp_path / "out.h5"
    for has_links in (True, False):
        if not has_links:
            monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links")))
        with pytest.raises(OutputExistsError, match=r"out\.h5: another write made it meanwhile"):
            repack(path, out, progress=lambda *_: out.write_text("of somebody else"))
        assert out.read_text() == "of somebody else"
        assert sorted(os.listdir(tmp_path)) == ["in", "out.h5"]
        out.unlink()


def test_disks_without_locks(tmp_path, monkeypatch):
    """The folder is the lock there."""
    (path,), out = write_files(tmp_path / "in", 1), tmp_path / "out"
    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(38, os.strerror(38))))

    def meanwhile(*_):
        with pytest.raises(OutputExistsError, match=r"this disk has no locks \(Function not implemented\)"):
            repack(path, out, overwrite=True)

    repack(path, out, progress=meanwhile)
    check_rows(read_all(str(out)), range(ROWS))
    assert leftovers(out) == []
    (out / ".ray_h5_repack").mkdir()
    with pytest.raises(OutputExistsError, match="If no write is running there, remove it"):
        repack(path, out, overwrite=True)


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
            with pytest.raises(OutputExistsError, match="another write") as error:
                repack(paths, out, overwrite=True)
            errors.append(error)

    repack(paths, out, progress=meanwhile)
    check_rows(read_all(str(out)), range(3 * ROWS))


def test_a_source_that_changes_meanwhile(tmp_path):
    paths = write_files(tmp_path / "in", 1)

    def change(*_):
        with open(paths[0], "ab") as file:
            file.write(b"more")

    with pytest.raises(StaleIndexError):
        repack(paths, tmp_path / "out", progress=change)
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []


def test_options_are_checked(tmp_path):
    paths = write_files(tmp_path / "in", 1)
    for options, said in [
        ({"codec": "lzma"}, "codec='lzma'"), ({"chunk_rows": 0}, "chunk_rows=0"),
        ({"chunk_rows": 1, "chunk_bytes": 1}, "expected one of them"), ({"page": 100}, "page=100"),
    ]:  # fmt: skip
        with pytest.raises(OptionError, match=said):
            repack(paths, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


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


def test_a_paged_file_in_a_store_is_planned_with_two_requests(tmp_path):
    save(tmp_path / "a.h5", {name: np.zeros((2000, 30)) for name in "abcd"}, chunks=(1, 30), compression="lzf")
    (tmp_path / "bkt").mkdir()
    repack(tmp_path / "a.h5", tmp_path / "bkt/b.h5", chunk_rows=2, codec="lz4", page="1MiB")
    with FaultServer(tmp_path) as server:
        assert FileOptions.of("s3://bkt/*.h5", storage_options=options_of(server)).index().num_rows == 2000
        gets = [each for each in server.requests() if each.method == "GET" and "list-type" not in each.query]
    assert len(gets) == 2


def test_local_copies_of_files_in_a_store_are_closed(tmp_path):
    """Otherwise the disk would hold them until the cache of open files is full."""
    write_files(tmp_path / "bkt", 1)
    with FaultServer(tmp_path) as server:
        repack("s3://bkt/f0.h5", tmp_path / "out.h5", storage_options=options_of(server))
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert not [name for name in opened if name.startswith(str(tmp_path))]
    check_rows(read_all(str(tmp_path / "out.h5")), range(ROWS))


@pytest.mark.parametrize("dtype", [">i4", "<i4", ">f8", [("a", ">i2"), ("b", "<f4")]])
def test_values_of_chunks_that_lie_in_two_slabs(monkeypatch, tmp_path, dtype):
    monkeypatch.setattr(copy_file, "SLAB_BYTES", 4000)
    values = np.arange(5000).astype("i2" if isinstance(dtype, list) else dtype)
    if isinstance(dtype, list):
        values, numbers = np.zeros(5000, dtype), values
        values["a"], values["b"] = numbers, numbers
    save(tmp_path / "a.h5", {"x": values}, chunks=(100,))
    repack(tmp_path / "a.h5", tmp_path / "b.h5", chunk_rows=701)
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["x"].dtype == values.dtype
        assert file["x"].chunks == (701,)
        assert (file["x"][:] == values).all()


COMPOUND = np.dtype({"names": ["a", "b"], "formats": ["<i2", ">f4"], "offsets": [1, 8], "itemsize": 15})
FILLS = [
    ("<i4", -1), (">i4", -1), ("<f8", np.nan), (">f2", 1.5), ("?", True), ("S5", b"ab"), ("V3", b"\1\2\3"),
    (COMPOUND, (3, 4.5)), (h5py.enum_dtype({"a": 3}, "u1"), 3), ("<c8", 1 + 2j),
]  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize(("dtype", "fill"), FILLS, ids=str)
def test_rows_that_an_array_grows_by_have_its_fill_value(tmp_path, dtype, fill, codec):
    type_, before = h5py.h5t.py_create(np.dtype(dtype), logical=True), tmp_path / "a.h5"
    with h5py.File(before, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((10, 3))
        plist.set_fill_value(np.array(fill, dtype))
        space = h5py.h5s.create_simple((10, 3), (h5py.h5s.UNLIMITED, h5py.h5s.UNLIMITED))
        data = h5py.Dataset(h5py.h5d.create(file.id, b"x", type_, space, dcpl=plist))
        data[...] = np.zeros((10, 3), dtype)
    repack(before, tmp_path / "b.h5", chunk_rows=8, codec=codec)
    found = []
    for name in ("a.h5", "b.h5"):
        with h5py.File(tmp_path / name, "r+") as file:
            file["x"].resize((17, 4))
            found.append(repr([file["x"][:].tolist(), file["x"].fillvalue.tolist()]))
    assert found[0] == found[1]


def test_memory_does_not_grow_with_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(file_writer, "IN_FLIGHT_BYTES", 1 << 20)
    peaks = []
    for chunks in (2000, 30_000):
        save(tmp_path / "a.h5", {"x": np.arange(chunks, dtype="i4")}, chunks=(1000,), compression="gzip")
        tracemalloc.start()
        repack(tmp_path / "a.h5", tmp_path / f"{chunks}.h5", chunk_rows=1, codec="none", threads=2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 28_000 * 100


@pytest.mark.parametrize("target", [b"/d\xff", b"/", b"../x", "/ü".encode(), b"a b"])
def test_soft_links_keep_the_bytes_of_their_targets(tmp_path, target):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(5)
        group = file.create_group("g")
        group.id.links.create_soft(b"s", target)
    repack(tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["g"].id.links.get_val(b"s") == target
