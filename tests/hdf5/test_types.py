"""Types that no reader can hand out are said to be so, and the other columns stay readable."""

import h5py
import numpy as np
import pytest
from h5kit import assert_same, replace_once

from ray_h5.errors import UnsupportedColumnError
from ray_h5.hdf5.reader import RowReader


def test_a_field_without_a_name(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(5, [("unusual", "<i4"), ("b", "<f4")])
        file["y"] = np.arange(5)
    replace_once(path, b"unusual\0", bytes(8))
    reader = RowReader(path)
    assert list(reader.columns) == ["y"]
    assert_same(reader.read(["y"])["y"], np.arange(5))
    with pytest.raises(UnsupportedColumnError, match=r"column 'x' has a field without a name"):
        reader.read(["x"])
