"""Requests, counted by the server: a process that has the plan of a file asks for the data of its columns alone."""

import contextlib
import pickle

import h5py
import numpy as np
import pytest

from ray_h5 import Grid, Groups, H5Dataset, Patches, Windows, csr, fields, joined, part, ragged, where
from ray_h5.errors import SchemaMismatchError
from ray_h5.hdf5.files import opening
from ray_h5.hdf5.files.metadata_replay import open_held
from tests.golden import makers
from tests.kit.files import save
from tests.kit.stores import forget_files
from tests.remote.kit import options_of
from tests.rows.test_ranges_equal_numpy import random_matrix, write_matrix

pytestmark = pytest.mark.usefixtures("nothing_stays")

N = 40
ROOM = 8 << 20
URL = "s3://bkt/a.h5"
RNG = np.random.default_rng(0)


def plain(file):
    file.create_dataset("x", data=RNG.random((N, 300)), chunks=(4, 300), compression="gzip")
    file.create_dataset("deep/y", data=np.arange(N), chunks=(8,))
    file["flat"] = RNG.random((N, 10))


def cells(file):
    """Write what anndata writes: a sparse matrix, categories, a mask, an array of observations."""
    write_matrix(file.create_group("X"), random_matrix(N, 500), {"chunks": (256,), "compression": "gzip"})
    file.attrs["encoding-type"] = "anndata"
    obs = file.create_group("obs")
    obs.attrs.update({"encoding-type": "dataframe", "_index": "_index"})
    obs["_index"] = np.array([f"{row}" for row in range(N)], "S4")
    kind = obs.create_group("kind")
    kind.attrs["encoding-type"] = "categorical"
    kind.create_dataset("codes", data=RNG.integers(-1, 3, N, "i1"), chunks=(16,))
    kind["categories"] = np.array([b"a", b"b", b"c"], object)
    count = obs.create_group("count")
    count.attrs["encoding-type"] = "nullable-integer"
    count.create_dataset("values", data=np.arange(N), chunks=(16,))
    count.create_dataset("mask", data=np.arange(N) % 3 == 0, chunks=(16,))
    file.create_group("var").attrs.update({"encoding-type": "dataframe", "_index": "_index"})
    file["var/_index"] = np.array([f"g{row}" for row in range(500)], object)
    file.create_dataset("obsm/pca", data=RNG.random((N, 5)), chunks=(8, 5))


def packed(file):
    x = file.create_dataset("x", data=RNG.integers(0, 99, (N, 3), "i2"), chunks=(8, 3))
    x.attrs.update({"scale_factor": 0.5, "_FillValue": np.int16(3)})
    time = file.create_dataset("time", data=np.arange(N), chunks=(8,))
    time.attrs["units"] = "days since 2000-01-01"


def turned(file):
    x = file.create_dataset("x", data=RNG.random((7, 11, N)), chunks=(4, 11, 8), compression="gzip")
    x.attrs["MATLAB_class"] = np.bytes_("double")
    file["flat"] = RNG.random((5, N))
    text = np.frombuffer("".join(f"{row:04}" for row in range(N)).encode("utf-16-le"), "<u2").reshape(N, 4).T
    file.create_dataset("text", data=text, chunks=(4, 8)).attrs["MATLAB_class"] = np.bytes_("char")
    file.create_dataset("one", data=np.arange(N), chunks=(8,))


def ranges(file):
    offsets = np.concatenate([[0], np.cumsum(np.arange(N) % 5)])
    file.create_dataset("values", data=np.arange(offsets[-1]), chunks=(16,))
    file["offsets"] = offsets
    file.create_dataset("label", data=np.arange(N), chunks=(8,))


def matrix(file):
    write_matrix(file.create_group("m"), random_matrix(N, 50), shape="dataset")


def groups(file):
    for number in range(N):
        group = file.create_group(f"data/demo_{number}")
        steps = 9 + number % 3
        group.create_dataset("u", data=RNG.random((steps, 3)) + number, chunks=(4, 3), compression="gzip")
        group.create_dataset("flat", data=np.arange(steps) + number)
        group["fixed"] = np.arange(4.0) + number
        group["rated"] = np.arange(30.0) * number
        group["rated"].attrs.update({"rate": 2.0, "t0": float(number)})


def grid(file):
    file.create_dataset("u", data=RNG.random((5, 8, 6)), chunks=(2, 3, 6), compression="gzip")
    file["t"] = np.arange(8.0)
    file["x"] = np.arange(6.0)


def referred(file):
    for name, chunks in {"flat": None, "chunked": (4, 3)}.items():
        refs = file.create_dataset(name, (N,), h5py.ref_dtype, maxshape=(None,))
        for row in range(N):
            values = RNG.random((4 + row % 3, 3))
            refs[row] = file.create_dataset(f"targets/of_{name}/{row}", data=values, chunks=chunks).ref
    file.create_dataset("x", data=np.arange(N), chunks=(8,))


def scans(file):
    for number in range(N):
        group, shape = file.create_group(f"scans/s{number}"), (9 + number % 3, 12)
        group.create_dataset("raw", data=RNG.random(shape), chunks=(4, 5), compression="gzip")
        group["label"] = RNG.integers(0, 3, shape, "u1")
        group["age"] = number


def in_parts(file):
    for number in range(4):
        file.create_dataset(f"part_{number}", data=RNG.random((N // 4, 5)), chunks=(4, 5))


WINDOWS = {"u": range(3)}
CASES = {
    "plain": (plain, {}),
    "csr": (matrix, {"columns": [csr("m")]}),
    "cells": (cells, {}),
    "sparse": (cells, {"columns": ["X"]}),
    "category": (cells, {"columns": ["obs/kind"]}),
    "nullable": (cells, {"columns": ["obs/count", "obsm/pca"]}),
    "CF": (packed, {"decode_cf": True}),
    "reversed": (turned, {"axes": "reversed"}),
    "ragged": (ranges, {"columns": [ragged("values", offsets="offsets"), "label"]}),
    "groups": (groups, {"rows": Groups("data/demo_*"), "columns": ["u", "flat", "fixed"]}),
    "windows over groups": (groups, {"rows": Groups("data/demo_*"), "windows": Windows(WINDOWS)}),
    "windows in seconds over groups": (
        groups,
        {
            "rows": Groups("data/demo_*"),
            "windows": Windows(
                {"u": [0.0, 1.0], "near": ("rated", slice(0, 2)), "events": ("u", slice(0, 2))}, at="flat"
            ),
            "columns": ["u", "near", "events", "time", "rated"],
        },
    ),
    "windows": (plain, {"windows": Windows({"x": range(3)}), "columns": ["x", "deep/y"]}),
    "windows of episodes": (plain, {"windows": Windows({"x": range(3)}, episode="deep/y"), "columns": ["x"]}),
    "references": (referred, {"columns": ["flat", "chunked", "x"]}),
    "groups by references": (referred, {"rows": Groups("chunked")}),
    "patches of groups": (scans, {"rows": Patches({"raw": (4, 4), "label": (4, 4)}, groups="scans/*", key="scan")}),
    "drawn patches of groups": (
        scans,
        {"rows": Patches({"raw": (4, 4)}, groups="scans/*", per_file=2, where_any=("label", [1]))},
    ),
    "targets of patches": (
        lambda file: (scans(file), [group.create_dataset("t", data=[1, 2]) for group in file["scans"].values()]),
        {"rows": Patches({"raw": (4, 4)}, groups="scans/*"), "columns": ["raw", "t"]},
    ),
    "joined": (in_parts, {"columns": [joined("part_*")]}),
    "patches end to end": (in_parts, {"columns": [joined("part_*")], "rows": Patches({"part": (5, 2)}, stride=(3, 1))}),
    "patches of groups end to end": (
        lambda file: [makers.write(file.create_group(f"g_{i}"), RNG, N) for i in range(2)],
        {
            "columns": [joined(fields("jc_*", ["v", "u"])), joined("jx_*")],
            "rows": Patches({"jc": (3,), "jx": (3,)}, axes={"jx": (0,)}, groups="g_*", stride=(2,)),
        },
    ),
    "made of made": (
        lambda file: makers.write(file, RNG, N),
        {
            "columns": {
                "encoded": joined("jcat_*"),
                "nullable": joined("jni_*"),
                "matrices": csr(joined("jX_*"), take=["g3", "g1"], names="genes"),
                "ranges": joined(ragged("run_*/x", offsets="run_*/o")),
                "fields": ragged(fields("rc", ["v", "u"]), bounds=joined("rbj_*")),
                "lists": ragged(ragged("rry", offsets="rri"), offsets="ro"),
                "vlen": part(joined("jvlen_*"), {0: [1, 0]}),
                "of_field": joined("jc_*/v"),
            }
        },
    ),
    "grid": (grid, {"rows": Grid(2)}),
    "windows over a grid": (grid, {"rows": Grid(2), "windows": Windows(WINDOWS)}),
}


def gets(server):
    found = [each for each in server.requests(method="GET") if not each.is_listing]
    server.forget()
    return len(found)


def arrays_of(plan):
    """Return rows of the one file of a plan, as a process that has nothing but the plan does; and what it asked for."""
    with plan.open(0) as reader:
        before = reader.stats.requests
        found = reader.read([column.name for column in plan.columns], np.arange(plan.num_rows)[::3])
        return found, reader.stats.requests - before


def comparable(value):
    """Return a row of a sparse matrix, or a list of arrays, as one array; other values as they are."""
    if isinstance(value, np.ndarray) and value.dtype == object and all(isinstance(each, np.ndarray) for each in value):
        return np.concatenate(value)
    return np.array([value.indices, value.data]) if hasattr(value, "indices") else value


def count(server, write, options, tmp_path, path):
    """Return the requests of planning cold, of planning with an index, and those for metadata of a further process."""
    with h5py.File(path, "w") as file:
        file["room"] = np.zeros(ROOM, np.uint8)  # the file is too large to be fetched as a whole
        write(file)
        del file["room"]
    local = H5Dataset(path, **options)
    given = {**options, "storage_options": options_of(server), "index_dir": tmp_path / "index"}
    server.forget()
    plan = H5Dataset(URL, **given)._source.plan
    cold = gets(server)
    forget_files()
    again = H5Dataset(URL, **given)._source.plan
    warm = gets(server)
    asked = []
    for each in (plan, again):
        forget_files()
        found, data = arrays_of(pickle.loads(pickle.dumps(each)))
        asked.append(gets(server) - data)
        expected, _ = arrays_of(local._source.plan)
        for name, values in expected.items():
            for one, other in zip(found[name], values, strict=True):
                np.testing.assert_array_equal(*map(comparable, (one, other)), strict=True)
    return cold, warm, *asked


def test_files_that_are_paired_are_asked_for_data_alone(server, tmp_path, bucket):
    for name, column in {"a.h5": "x", "b.h5": "y"}.items():
        with h5py.File(bucket / name, "w") as file:
            file["room"] = np.zeros(ROOM, np.uint8)
            file.create_dataset(column, data=RNG.random((N, 300)), chunks=(4, 300), compression="gzip")
            file[f"flat_{column}"] = np.arange(N) % 5
            del file["room"]
    local = H5Dataset(bucket / "a.h5", zip_files=bucket / "b.h5")._source.plan
    given = {"storage_options": options_of(server), "index_dir": tmp_path / "index", "zip_files": "s3://bkt/b.h5"}
    server.forget()
    plan = H5Dataset(URL, **given)._source.plan
    assert gets(server) <= 12
    forget_files()
    again = H5Dataset(URL, **given)._source.plan
    assert gets(server) == 0
    for each in (plan, again):
        forget_files()
        found, data = arrays_of(pickle.loads(pickle.dumps(each)))
        assert gets(server) == data
        for name, values in arrays_of(local)[0].items():
            np.testing.assert_array_equal(found[name], values)
    chosen = H5Dataset(URL, ["x"], predicate=where(flat_y=3), **given)
    np.testing.assert_array_equal(chosen[1]["x"].numpy(), local_row(bucket, 8))


@pytest.mark.parametrize("as_text", [False, True])
def test_ids_of_files_that_are_paired_are_compared_once(server, tmp_path, bucket, as_text):
    ids = np.arange(N) * 7
    stored = np.array([b"%d" % each for each in ids], object) if as_text else ids
    given = {"storage_options": options_of(server), "index_dir": tmp_path / "index", "zip_files": "s3://bkt/b.h5"}
    for order, error in ((slice(None, None, -1), SchemaMismatchError), (slice(None), None)):
        for name, column, of_rows in (("a.h5", "x", stored), ("b.h5", "y", stored[order])):
            save(bucket / name, {column: np.arange(N), "id": of_rows})
        for most in (16, 0):
            forget_files()
            server.forget()
            with pytest.raises(error, match="'id' differs: row 0 has ") if error else contextlib.nullcontext():
                H5Dataset(URL, ["x", "y"], **given)
            assert gets(server) <= most
    assert H5Dataset(URL, ["x", "y"], **given)[:]["y"].tolist() == [*range(N)]


def test_groups_of_two_files_are_asked_for_data_alone(server, tmp_path, bucket):
    for name, kind in {"a.h5": "images", "b.h5": "masks"}.items():
        with h5py.File(bucket / name, "w") as file:
            file["room"] = np.zeros(ROOM, np.uint8)
            for case in range(4):
                file.create_dataset(f"study/{kind}/case_{case}", data=RNG.random((9 + case, 300)),
                                    chunks=(4, 300) if case % 2 else None)  # fmt: skip
    given = {"rows": Groups({"image": "images/*", "mask": "masks/*"}), "group": "study"}
    local = H5Dataset(bucket / "a.h5", zip_files=bucket / "b.h5", **given)
    given |= {"storage_options": options_of(server), "index_dir": tmp_path / "index", "zip_files": "s3://bkt/b.h5"}
    for most in (12, 0):
        forget_files()
        server.forget()
        dataset = H5Dataset(URL, **given)
        assert gets(server) <= most
        server.forget()
        for found, expected in zip(dataset, local, strict=True):
            for name in ("image", "mask"):
                np.testing.assert_array_equal(found[name].numpy(), expected[name].numpy())
        assert gets(server) <= 8, "each dataset once"


def local_row(bucket, row):
    with h5py.File(bucket / "a.h5") as file:
        return file["x"][row]


@pytest.mark.parametrize("case", CASES)
def test_a_process_that_has_the_plan_asks_for_data_alone(server, tmp_path, bucket, case):
    write, options = CASES[case]
    cold, *later = count(server, write, options, tmp_path, bucket / "a.h5")
    # It reads the labels of each group; and looks at the first group before it looks for targets in all.
    assert cold <= {"drawn patches of groups": 3 * N, "targets of patches": 16, "made of made": 20}.get(case, 12)
    assert later == [0, 0, 0]


def test_libhdf5_opens_a_file_again_only_after_a_pass_that_missed_bytes(server, bucket, monkeypatch):
    opened = []

    def counted(held, path):
        file = open_held(held, path)
        opened.append(path)
        return file

    monkeypatch.setattr(opening, "open_held", counted)
    for name in ("a.h5", "b.h5", "c.h5"):
        with h5py.File(bucket / name, "w") as file:
            plain(file)
    found = H5Dataset("s3://bkt/*.h5", storage_options=options_of(server))
    assert found.index.num_rows == 3 * N
    assert {opened.count(path) for path in opened} == {1}
