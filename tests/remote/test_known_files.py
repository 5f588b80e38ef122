"""Files in stores that are planned without libhdf5 are planned as by libhdf5, or left to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.errors import RayH5Error, StaleIndexError
from ray_h5.hdf5.files import metadata_replay, opening
from ray_h5.read.open_file import forget_all
from ray_h5.read.open_file_base import OpenFile
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.request_pool import fetched
from ray_h5.storage.stores.store_base import InStore
from tests.conformance.corpus import CASES
from tests.hdf5.h5kit import in_fork
from tests.hdf5.test_known_headers import MANY, NAMES, damaged, datasets, write, write_plain
from tests.properties import few
from tests.remote.kit import options_of


@dataclass(frozen=True, eq=False)
class Memory(InStore):
    """A store in memory, which a child process may read; it lists what it was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[int, int]] = field(default_factory=list)
    place = ""

    def look(self, url: str) -> ObjectIdentity | None:
        data = self.files.get(url)
        return None if data is None else ObjectIdentity(str(hash(data)), len(data))

    def read(self, url: str, expect: ObjectIdentity, offset: int, nbytes: int) -> bytes:  # noqa: ARG002
        self.asked.append((offset, nbytes))
        return self.files[url][offset : offset + nbytes]

    def entries(self, url: str, *, below: bool) -> Any:
        raise NotImplementedError


URL = "s3://bkt/a.h5"


@contextlib.contextmanager
def by_libhdf5_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenFile, "headers", lambda _: None)
        yield


def plan(data: bytes, group: str = "/", store: Memory | None = None) -> Any:
    """Return all that planning finds out of a file in a store, or the error."""
    forget_all()
    store = store or Memory()
    store.files[URL] = data
    try:
        reader = RowReader(URL, group, storage_options=store)
        form, columns = reader.form, list(reader.columns)
        reader.find(columns)
        known, refused = reader.manifest(columns), reader.layout.refused
    except RayH5Error as exc:
        return type(exc), str(exc)
    facts = {name: (repr(each), each.layout.path) for name, each in known.columns.items()}
    return form, columns, facts, known, {name: (type(error), str(error)) for name, error in refused.items()}


def assert_same(found: Any, expected: Any) -> None:
    if len(expected) == 2:
        assert found == expected
        return
    assert found[:3] == expected[:3]  # a fill value may be NaN
    assert found[4:] == expected[4:]
    assert found[3].listing == expected[3].listing
    assert found[3].absent == expected[3].absent


def both(data: bytes, group: str = "/") -> tuple[Any, Any]:
    """Return what is planned by headers, where they are known, and what is planned by libhdf5."""
    found = plan(data, group)
    with by_libhdf5_alone():
        return found, plan(data, group)


def in_parts(patch: pytest.MonkeyPatch) -> None:
    """Let each miss be a request, as in a large file."""
    patch.setattr(metadata_replay, "_HEAD_BYTES", 4096)
    patch.setattr(metadata_replay, "_SMALL_FILE_BYTES", 0)
    patch.setattr(metadata_replay, "_GAP_BYTES", 0)


ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"unit": "mm", "rate": 2.0},
    {"units": np.bytes_("days since 2000-01-01"), "rate": 2.0},
    {"units": "days since 2000-01-01"},
    {"units": "metres"},
    {"scale_factor": 0.5, "_FillValue": np.int16(3)},
    {"scale_factor": np.array([2.0, 3.0])},
    {"NAME": np.bytes_("This is a netCDF dimension but not a netCDF variable.   10")},
]


def with_attributes(path: Path, columns: list[str], attributes: dict[str, Any]) -> bytes:
    with h5py.File(path, "a") as file:
        for name in columns[:3]:
            file[name].attrs.update(attributes)
    return path.read_bytes()


@pytest.mark.parametrize("is_large", [False, True])
@few(12)
@given(
    columns=st.dictionaries(st.sampled_from(NAMES), datasets(), max_size=5),
    lengths=st.tuples(st.integers(0, 9), st.integers(0, 90)),
    attributes=st.lists(st.sampled_from(ATTRIBUTES), min_size=2, max_size=2),
    group=st.sampled_from(["/", "deep"]),
)
def test_alike_files_are_planned_as_by_libhdf5(tmp_path_factory, is_large, columns, lengths, attributes, group):
    folder = tmp_path_factory.mktemp("f")
    group = group if any(name.startswith("deep/") for name in columns) else "/"
    with pytest.MonkeyPatch.context() as patch:
        if is_large:
            in_parts(patch)
        for number, rows in enumerate(lengths):
            path = write(folder / f"{number}.h5", columns, rows)
            data = with_attributes(path, [*columns], attributes[number])
            assert_same(*both(data, group))


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if case.name != MANY])
def test_files_of_the_corpus(tmp_path, case):
    path = tmp_path / "a.h5"
    case.make(path)

    def check() -> None:
        if not path.is_file() or path.stat().st_size > 1 << 20:
            return
        for _ in range(2):  # the second time, what was found is known
            assert_same(*both(path.read_bytes()))

    in_fork(check) if case.child else check()


def spread_out(path: Path, rows: int = 200) -> bytes:
    """Write a file whose metadata lie far from each other."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        columns = [file.create_dataset(name, (rows, 40), "f8", chunks=(1, 40)) for name in ("x", "y")]
        for row in range(rows):
            for each in columns:
                each[row] = rng.random(40)
        for number in range(20):
            file[f"deep/{number:02}/x"] = rng.random(900)
            file.create_dataset(f"deep/{number:02}/y", data=rng.random((40, 30)), chunks=(3, 30))
    return path.read_bytes()


def test_what_is_not_in_memory_is_asked_for_as_by_libhdf5(tmp_path, monkeypatch):
    in_parts(monkeypatch)
    stores = [Memory(), Memory()]
    data = spread_out(tmp_path / "a.h5")
    plan(data)
    begun = fetched.value.rounds
    found = plan(data, store=stores[0])
    rounds = fetched.value.rounds - begun
    with by_libhdf5_alone():
        assert_same(found, plan(data, store=stores[1]))
    assert rounds <= fetched.value.rounds - begun - rounds
    blocks = [{at for offset, count in each.asked for at in range(offset, offset + count, 4096)} for each in stores]
    assert blocks[0] == blocks[1]


def with_units(path: Path, units: str) -> bytes:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5)
        file["x"].attrs["units"] = units
    return path.read_bytes()


def test_texts_outside_of_attributes_are_read_for_each_file(tmp_path, monkeypatch):
    """The attribute has the address of a text: it is the same in both files."""
    files = [with_units(tmp_path / "a.h5", f"days since 2000-01-0{day}") for day in (1, 2)]
    expected = [both(data)[1] for data in files]
    monkeypatch.setattr(opening, "open_held", None)
    for data, planned in zip(files, expected, strict=True):
        assert_same(plan(data), planned)
    assert [each[3].columns["x"].notes.time for each in expected] == ["days since 2000-01-01", "days since 2000-01-02"]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_file_that_was_written_again_is_refused(server, bucket, is_known):
    options, paths = options_of(server), [write_plain(bucket / f"{number}.h5") for number in range(2)]
    if is_known:
        RowReader("s3://bkt/0.h5", storage_options=options).manifest(["signal"])
    before = RowReader("s3://bkt/1.h5", storage_options=options).identity
    forget_all()
    paths[1].unlink()
    write_plain(paths[1], rows=7)
    reader = RowReader("s3://bkt/1.h5", storage_options=options, expect=before)
    with pytest.raises(StaleIndexError, match="changed between planning and reading"):
        reader.layout  # noqa: B018  it is found when asked for


@pytest.mark.parametrize("step", [197, pytest.param(5, marks=pytest.mark.nightly)])
def test_damaged_files_are_planned_as_by_libhdf5_or_refused_as_by_it(tmp_path, step):
    """Headers lead to the same facts as libhdf5, which refuses a file also for what nobody needs.

    That are attributes, and the time of the last change. What it says of an attribute, it may say at another step.
    """
    path = write_plain(tmp_path / "a.h5")
    with h5py.File(path, "a") as file:
        file["text"].attrs["unit"] = np.bytes_("mm")
        file["signal"].attrs["scale_factor"] = 2.0
        file["grows"].attrs["units"] = "days since 2000-01-01"
    plan(path.read_bytes())

    def check(tried: list[tuple[int, bytes]]) -> None:
        for at, data in tried:
            found, expected = both(data)
            said = str(expected[4] if len(expected) > 2 else expected[1])
            if found != expected and ("attribute" in said or "modification time" in said):
                assert len(found) > 2 or found[0] is expected[0], f"byte {at}"
                continue
            try:
                assert_same(found, expected)
            except AssertionError as exc:
                raise AssertionError(f"byte {at}") from exc

    in_fork(partial(check, [*damaged(path, step)]), timeout_s=500)
