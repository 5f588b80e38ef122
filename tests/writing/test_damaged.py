"""`repack` of damaged files: a file or an error of the package, and never the end of the process."""

from collections import Counter

import h5py
import hdf5plugin
import numpy as np
import pytest

from ray_h5 import RowReader, repack
from ray_h5.errors import CorruptFileError, RayH5Error, WriteFailedError
from tests.conformance.corpus import CASES
from tests.fuzz.children import in_child
from tests.fuzz.mutate import healthy, mutated
from tests.writing.test_copying import everything


def what_repack_does(path):
    try:
        repack(path, path.parent / "out.h5", overwrite=True, drop=True, threads=1)
    except WriteFailedError as exc:
        return {"said": f"blames the disk: {exc}"}
    except RayH5Error as exc:
        return {"said": "refused", "text": str(exc)}
    return {"said": "written"}


def of_mutant(folder, file, seed):
    path = folder / "damaged.h5"
    path.write_bytes(mutated(file, np.random.default_rng(seed))[0])
    outcome = in_child(lambda: what_repack_does(path), 30)
    return outcome.failure if outcome.values is None else outcome.values["said"]


def test_an_index_of_chunks_in_which_libhdf5_crashes(tmp_path):
    (case,) = [case for case in CASES if case.name == "B-tree, version 2, filtered"]
    case.make(tmp_path / "a.h5")
    file = healthy(case.name, tmp_path / "a.h5")
    assert of_mutant(tmp_path, file, 2123105752) in {"refused", "written"}


def test_a_name_that_is_listed_and_not_found(tmp_path):
    """libhdf5 searches for names in their order, and a damaged one is out of it."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["aaaa"] = file["bbbb"] = np.arange(4)
    path.write_bytes(path.read_bytes().replace(b"aaaa", b"zzzz"))
    with pytest.raises(CorruptFileError, match=r"a\.h5: listing what it holds failed.*'zzzz' doesn't exist"):
        repack(path, tmp_path / "out.h5")


@pytest.mark.slow
def test_damaged_copies_of_all_layouts(tmp_path):
    everything(tmp_path / "a.h5")
    file = healthy("everything", tmp_path / "a.h5")
    what_repack_does(tmp_path / "a.h5")  # its imports
    ends = Counter(of_mutant(tmp_path, file, seed) for seed in range(40))
    assert ends.keys() <= {"refused", "written"}
    assert len(ends) == 2


@pytest.mark.parametrize("kind", ["references", "arrays"])
def test_a_bzip2_stream_that_is_cut_short(tmp_path, kind):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        dtype = h5py.ref_dtype if kind == "references" else np.dtype("(3,)i4")
        file.create_dataset("x", (20000,), dtype, chunks=(10000,), **hdf5plugin.BZip2())
        file["x"][...] = file.ref if kind == "references" else np.arange(60000).reshape(20000, 3)
        mask, data = file["x"].id.read_direct_chunk((10000,))
        file["x"].id.write_direct_chunk((10000,), data[:-9], mask)
    outcome = in_child(lambda: what_repack_does(path), 30)
    assert outcome.values["said"] == "refused", outcome
    assert "the bzip2 stream ends early" in outcome.values["text"]


@pytest.mark.parametrize("chunk_rows", [None, 3])
def test_a_gzip_without_its_level(tmp_path, chunk_rows):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((10,))
        plist.set_filter(h5py.h5z.FILTER_DEFLATE, h5py.h5z.FLAG_OPTIONAL, (5,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((100,)), dcpl=plist)
        file["x"][:] = np.arange(100)
    data = (tmp_path / "a.h5").read_bytes()
    with_level = b"\x01\x00\x08\x00\x01\x00\x01\x00deflate\x00\x05\x00\x00\x00"
    at = data.index(with_level)
    without = with_level.replace(b"\x01\x00\x01\x00deflate", b"\x01\x00\x00\x00deflate")
    (tmp_path / "a.h5").write_bytes(data[:at] + without + data[at + len(with_level) :])
    repack(tmp_path / "a.h5", tmp_path / "b.h5", chunk_rows=chunk_rows)
    for name in ("a.h5", "b.h5"):  # deflate needs no level; libhdf5 does not read the first one
        assert np.array_equal(RowReader(tmp_path / name).read(["x"])["x"], np.arange(100))
