"""Another file gets the name of one that values come from, while it is looked at, opened or read."""

import os

import h5py
import numpy as np
import pytest

from ray_h5 import RayH5Error, RowReader, StaleIndexError
from ray_h5.read import file_caches
from ray_h5.read.open_file import forget_all
from tests.hdf5.h5kit import layout_of
from tests.kit.files import save

SHAPE = (10, 8)


def of_values(value, width=8):
    return {"x": np.full((10, width), value, "f8")}


def leads(folder, kind, name="s.h5"):
    """Write a file whose column is in the one called `name`."""
    path, there = str(folder / "m.h5"), str(folder / "ok" / name)
    if kind != "external":
        return save(
            path, {"x": h5py.ExternalLink(there, "/x") if kind == "link" else layout_of(there, "x", SHAPE, "f8")}
        )
    with h5py.File(path, "w") as file:
        file.create_dataset("x", SHAPE, "f8", external=[(there, 0, h5py.h5f.UNLIMITED)])
    return path


class Swaps:
    """Gives a name to another file, before the n-th call that looks at that name or opens it."""

    def __init__(self, monkeypatch, there, other, number, for_one_call):
        self.left, self._there, self._other, self._for_one_call = number, there, other, for_one_call
        for module, name in ((os, "open"), (os, "stat"), (os, "lstat"), (os, "readlink"), (h5py.h5f, "open")):
            monkeypatch.setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, call):
        def counted(path, *args, **kwargs):
            if os.fsdecode(path) != self._there if isinstance(path, (str, bytes)) else True:
                return call(path, *args, **kwargs)
            self.left -= 1
            if self.left == -1 or (self.left == -2 and self._for_one_call):
                self.swap()
            return call(path, *args, **kwargs)

        return counted

    def swap(self):
        os.rename(self._there, self._there + "-")
        os.rename(self._other, self._there)
        os.rename(self._there + "-", self._other)


def outcomes(make, read):
    """Yield what reads return for which the n-th call finds the other file, until there is no such call."""
    for number in range(200):
        forget_all()
        with pytest.MonkeyPatch.context() as monkeypatch:
            swaps = make(monkeypatch, number)
            try:
                yield read()
            except RayH5Error as exc:
                yield exc
        if swaps.left >= 0:
            return
    raise AssertionError("it does not end")


@pytest.mark.parametrize("for_one_call", [True, False])
@pytest.mark.parametrize("kind", ["link", "virtual", "external"])
def test_nothing_is_read_outside_of_allow_external(tmp_path, kind, for_one_call):
    """The name is a link, and leads out of the folder from the n-th call on, or for it alone."""
    for folder, value in (("ok", 1), ("secret", 2)):
        (tmp_path / folder).mkdir()
        if kind == "external":
            np.full(SHAPE, value, "f8").tofile(tmp_path / folder / "real")
        else:
            save(tmp_path / folder / "real", of_values(value))
    link, other = str(tmp_path / "ok" / "s.h5"), str(tmp_path / "other")

    def make(monkeypatch, number):
        for name, folder in ((link, "ok"), (other, "secret")):
            os.path.lexists(name) and os.unlink(name)
            os.symlink(tmp_path / folder / "real", name)
        return Swaps(monkeypatch, link, other, number, for_one_call)

    path = leads(tmp_path, kind)
    found = list(outcomes(make, lambda: RowReader(path, allow_external=tmp_path / "ok").read(["x"], [0, 9])["x"]))
    values = [each for each in found if not isinstance(each, RayH5Error)]
    assert all((each == 1).all() for each in values)
    assert 0 < len(values) < len(found), "it was seen"


@pytest.mark.parametrize("for_one_call", [True, False])
@pytest.mark.parametrize("kind", ["link", "virtual"])
@pytest.mark.parametrize("width", [4, 4096])
def test_rows_that_change_their_size_are_an_error(tmp_path, kind, width, for_one_call):
    (tmp_path / "ok").mkdir()
    there, other = str(tmp_path / "ok" / "s.h5"), str(tmp_path / "other")

    def make(monkeypatch, number):
        save(there, of_values(1))
        save(other, of_values(2, width))
        return Swaps(monkeypatch, there, other, number, for_one_call)

    path = leads(tmp_path, kind)
    found = list(outcomes(make, lambda: RowReader(path, allow_external=tmp_path).read(["x"], [0, 9])["x"]))
    for each in found:
        if not isinstance(each, RayH5Error):
            # A virtual dataset may take a part of wider rows.
            assert (each == each[0, 0]).all()
            assert each.shape == (2, 8) or (each[0, 0] == 2 and each.shape == (2, width))
    assert any(isinstance(each, StaleIndexError) for each in found)


def stack(folder, count=8, rows=10, dtype="f8"):
    """Write virtual columns x and y of `count` files of `rows` rows."""
    layouts = {name: h5py.VirtualLayout((count * rows, 4), dtype) for name in ("x", "y")}
    for number in range(count):
        values = np.arange(rows * 4.0).reshape(rows, 4) + 100 * number
        values = values.astype("S").astype(object) if np.dtype(dtype).hasobject else values
        save(folder / f"s{number}.h5", {"x": values, "y": values[::-1]}, dtype=dtype)
        for name, layout in layouts.items():
            source = h5py.VirtualSource(f"s{number}.h5", name, (rows, 4))
            layout[number * rows : (number + 1) * rows] = source
    return save(folder / "m.h5", layouts)


@pytest.mark.parametrize(
    ("count", "dtype"),
    [(8, "f8"), (file_caches.MAX_OPEN_FILES + 6, "f8"), (file_caches.MAX_OPEN_FILES + 6, h5py.string_dtype())],
)
def test_a_read_looks_at_the_sources_of_its_rows_alone(tmp_path, monkeypatch, count, dtype):
    path = stack(tmp_path, count, dtype=dtype)
    reader = RowReader(path, allow_external=tmp_path)
    reader.read(["x", "y"], [12, 39])  # of more files than stay open, those are opened
    looked, stat = [], os.stat
    monkeypatch.setattr(os, "stat", lambda path, *args, **kwargs: (looked.append(path), stat(path, *args, **kwargs))[1])
    with h5py.File(path) as file:
        expected = file["y"][[11, 12, 35]]
    looked.clear()
    np.testing.assert_array_equal(reader.read(["x", "y"], [35, 11, 12])["y"], expected[[2, 0, 1]])
    sources = sorted(os.path.basename(each) for each in looked if str(each).startswith(str(tmp_path)))
    assert sources == ["s1.h5", "s3.h5"]


@pytest.mark.parametrize("how", ["replaced", "rewritten", "cut"])
def test_rows_of_a_source_that_changed_are_an_error(tmp_path, how):
    path, there = stack(tmp_path), tmp_path / "s2.h5"
    reader = RowReader(path, allow_external=tmp_path)
    first = reader.read(["x"], [0, 25])["x"]
    if how == "replaced":
        save(tmp_path / "new.h5", {"x": np.zeros((10, 4)), "y": np.zeros((10, 4))})
        os.rename(tmp_path / "new.h5", there)
    else:
        there.write_bytes(b"" if how == "cut" else bytes(there.stat().st_size))
    with pytest.raises(StaleIndexError, match=r"s2\.h5, which changed between planning and reading"):
        reader.read(["x"], [0, 25])
    np.testing.assert_array_equal(reader.read(["x"], [0])["x"], first[:1])
