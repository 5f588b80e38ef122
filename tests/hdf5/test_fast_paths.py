"""What planning asks of a file by fewer calls equals what h5py says, or the slower way."""

import h5py
import numpy as np
import pytest

from ray_h5 import RowReader
from ray_h5.errors import RayH5Error
from ray_h5.hdf5.files.links import links_in
from ray_h5.hdf5.groups.matching_groups import GroupPattern


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("count", [0, 3, 40])
def test_links_are_listed_as_h5py_lists_them(tmp_path, libver, tracked, count):
    with h5py.File(tmp_path / "a.h5", "w", libver=libver) as file:
        group = file.create_group("g", track_order=tracked)
        for number in range(count):
            group[f"n{number * 7 % count}"] = number
        if count:
            group["soft"], group["gone"] = h5py.SoftLink("n0"), h5py.ExternalLink("none.h5", "/x")
            h5py.h5g.create(group.id, b"n\xff")
        listed = list(links_in(group))
        assert [name for name, _, _ in listed] == list(group)
        for name, kind, address in listed:
            info = group.id.links.get_info(name if isinstance(name, bytes) else name.encode())
            assert kind == info.type
            assert kind != h5py.h5l.TYPE_HARD or address == info.u


_VALUES = [3, 2.5, True, "text", np.bytes_("abc"), 1 + 2j, np.zeros(1, "i4,f8")[0], h5py.Empty("f4")]


@pytest.mark.parametrize("value", _VALUES)
@pytest.mark.parametrize("name", ["s", "a/s", "/a/s", "soft", "ref"])
def test_a_single_value_is_the_one_dataset_of_its_table(tmp_path, value, name):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["s"] = file["a/s"] = value
        file["soft"], file["ref"] = h5py.SoftLink("/a/s"), file["s"].ref

    def by_table(reader):
        return reader.group_table(GroupPattern(name.strip("/"), name=name))[0].columns.get(name)

    expected, found = (_outcome(tmp_path / "a.h5", way) for way in (by_table, lambda reader: reader.single(name)))
    assert found == expected


def _outcome(path, way):
    try:
        with RowReader(path) as reader:
            found = way(reader)
    except RayH5Error as exc:
        return type(exc), str(exc)
    if found is None:
        return None
    arrays = [(each.dtype, each.tolist()) for each in (found.class_of, found.shapes, found.offsets)]
    layouts = [each.where + repr(each) for each in found.layouts]
    return found.name, [*found.paths], layouts, found.single, found.chunks, arrays
