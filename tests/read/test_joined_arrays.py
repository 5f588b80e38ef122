"""Texts and paths as arrays; whole datasets as runs."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.manifest.joined_arrays import Paths, Texts
from ray_h5.manifest.row_requests import RunRequest
from ray_h5.storage.local import natural_key


@given(st.lists(st.binary(max_size=5), max_size=20), st.data())
def test_texts_equal_the_list_that_they_are_made_of(texts, data):
    found = Texts.of(texts)
    assert list(found) == texts
    assert [found[i] for i in range(-len(texts), len(texts))] == [*texts, *texts]
    assert list(found[1:7:2]) == texts[1:7:2]
    at = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=9)) if texts else []
    taken = found.take(np.array(at, np.int64))
    assert taken.dtype == object
    assert taken.tolist() == [texts[i] for i in at]
    with pytest.raises(IndexError):
        found[len(texts)]


def test_paths_of_a_column_share_the_names_of_the_groups():
    groups = Paths.of(["data/démo_1", "data/demo_2"])
    column = Paths(groups.groups, "/obs/eef")
    assert list(column) == ["data/démo_1/obs/eef", "data/demo_2/obs/eef"]
    assert list(column[1:]) == ["data/demo_2/obs/eef"]


def test_names_of_a_hundred_thousand_groups_are_two_arrays():
    paths = Paths.of([f"data/demo_{i}" for i in range(100_000)])
    columns = [Paths(paths.groups, f"/column_{i}") for i in range(5)]
    assert len(pickle.dumps((paths, columns))) < 100_000 * 24
    assert paths.groups.ends.nbytes + len(paths.groups.data) < 100_000 * 24


@given(st.lists(st.text("0129ab/", min_size=1, max_size=6), unique=True))
def test_names_sort_by_their_numbers(names):
    def parts(name):
        found, digits = [], ""
        for each in [*name, ""]:
            if each.isdigit():
                digits += each
                continue
            found += [(0, int(digits))] if digits else []
            digits = ""
            found += [(1, each)] if each else []
        return found

    assert len({natural_key(name) for name in names}) == len(names)
    assert sorted(names, key=natural_key) == sorted(names, key=lambda name: (parts(name), natural_key(name)))


def test_runs_list_their_rows():
    request = RunRequest(np.array([7, 0, 7]), np.array([0, 3, 5]), np.array([3, 2, 1]))
    listed = request.listed()
    found = dict(zip(listed.places.tolist(), listed.rows.tolist(), strict=True))
    assert found == {0: 7, 1: 8, 2: 9, 3: 0, 4: 1, 5: 7}
    assert np.all(np.diff(listed.rows) >= 0)
