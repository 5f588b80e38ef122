"""Indices along axes equal what NumPy takes of arrays; where there is a closed form, many of them take no memory."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.manifest.indices import ENDLESS, Along, composed, lengths_of, picked, runs_of, size_of
from tests.properties import few


@st.composite
def along(draw, length):
    """Some indices of an axis, in any order; and as NumPy has them."""
    kind = draw(st.sampled_from(["range", "slice", "blocks", "any"]))
    if kind == "range":
        first = draw(st.integers(0, length))
        at = Along.range(first, draw(st.integers(0, length - first)))
        return at, np.arange(at.first, at.first + at.block)
    if kind == "slice":
        ends = st.one_of(st.none(), st.integers(-length, length))
        step = draw(st.sampled_from([1, 2, 3, -1, -2]))
        indices = np.arange(length)[slice(draw(ends), draw(ends), step)]
        return Along.of(indices), indices
    if kind == "blocks":
        first, block = draw(st.integers(0, length - 1)), draw(st.integers(1, length))
        stride = draw(st.integers(block, length))
        count = max(0, (length - first - block) // stride + 1)
        at = Along(first, stride, count, block)
        return at, (first + stride * np.arange(count)[:, None] + np.arange(block)).ravel()
    indices = np.array(draw(st.lists(st.integers(0, length - 1), max_size=2 * length)), np.int64)
    return Along.of(indices), indices


@few(300)
@given(st.data(), st.integers(1, 12))
def test_indices_along_an_axis_equal_numpy(data, length):
    at, indices = data.draw(along(length))
    for _ in range(data.draw(st.integers(0, 3))):
        if len(at):
            then, places = data.draw(along(len(at)))
            at, indices = at.take(then), indices[places]
    values = np.arange(100, 100 + length)
    assert len(at) == len(indices)
    assert at.indices.tolist() == indices.tolist()
    assert values[at.key].tolist() == values[indices].tolist()
    assert [i for first, count in at.pieces.tolist() for i in range(first, first + count)] == indices.tolist()
    assert len(at.pieces) == at.num_pieces
    assert at.is_all_of(length) == (indices.tolist() == [*range(length)])
    assert at.shifted(7).indices.tolist() == (indices + 7).tolist()
    assert not len(at) or (at.begin, at.end) == (indices[0], indices[-1] + 1)
    assert runs_of(indices).tolist() == at.pieces.tolist()
    assert (at.even is not None) or len({*np.diff(indices).tolist()}) > 1
    assert Along.of(indices).indices.tolist() == indices.tolist()
    assert pickle.loads(pickle.dumps(at)) == at
    assert [at.one(place).indices.tolist() for place in range(len(at))] == [[i] for i in indices.tolist()]


def test_none_of_reversed_indices_takes_none():
    at = Along.of(np.arange(6)[::-1]).take(Along.range(3, 3)).take(Along(7, 2, 0))
    assert np.arange(6)[at.key].tolist() == at.indices.tolist() == at.pieces.tolist() == []
    assert len(at) == at.num_pieces == at.end == 0
    assert at.is_all_of(0)


@few(300)
@given(st.data(), st.integers(1, 12))
def test_what_two_have_in_common(data, length):
    at, indices = data.draw(along(length))
    other, others = data.draw(along(length))
    if (np.diff(others) <= 0).any():
        others = np.unique(others)
        other = Along.of(others)
    assert other.places(np.arange(length)).tolist() == [
        others.tolist().index(i) if i in others else -1 for i in range(length)
    ]
    here, there = at.common(other)
    assert here.indices.tolist() == [place for place, i in enumerate(indices.tolist()) if i in others]
    assert indices[here.indices].tolist() == others[there.indices].tolist()


def test_many_indices_take_no_memory():
    billion = 1 << 30
    at = Along.all_of(4 * billion).take(Along(3, 2, billion)).take(Along(7, -1, 8)).take(Along.range(2, 3))
    assert at.indices.tolist() == [13, 11, 9]
    halves = Along(0, 2 * billion, 2, billion // 2)  # a mapping of two blocks
    here, there = Along.all_of(halves.end).common(halves)
    assert (here, there) == (halves, Along.all_of(billion))
    assert Along.range(5, billion).take(there).take(Along.range(0, 2)).indices.tolist() == [5, 6]


@few(100)
@given(st.data(), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_indices_along_axes_of_rows_equal_numpy(data, shape):
    rows = np.arange(2 * np.prod(shape)).reshape(2, *shape)
    found, taken = rows, ()
    for _ in range(data.draw(st.integers(0, 3))):
        some = [data.draw(st.one_of(st.none(), along(n))) if n else None for n in found.shape[1:]]
        some = some[: data.draw(st.integers(0, len(some)))]
        taken = composed(taken, tuple(None if of is None else of[0] for of in some))
        for axis, of in enumerate(some):
            found = found if of is None else found.take(of[1], axis=1 + axis)
    assert np.array_equal(picked(rows, taken), found)
    assert lengths_of(shape, taken) == [*found.shape[1:]]
    ends = [Along.all_of(n) if of is None else of for n, of in zip(shape, (*taken, *[None] * len(shape)), strict=False)]
    assert size_of(ends) == found[0].size


SAME = [
    ([2, 3, 4], Along(2, 3, 1, 3)),
    ([3], Along(3, 1, 1, 1)),
    ([5, 3, 1], Along(5, -2, 3)),
    ([0, 1, 3, 4], Along(0, 3, 2, 2)),
    ([0, 1, 2], Along.all_of(3)),
    ([7, 8, 0], Along(0, 0, 0, 0, ((7, 2), (0, 1)))),
]


@pytest.mark.parametrize(("indices", "at"), SAME)
def test_the_same_indices_are_the_same_value(indices, at):
    """Plans compare, and are compared with what a process has read already."""
    assert Along.of(np.array(indices)) == at
    assert at.indices.tolist() == indices


def test_selections_without_an_end():
    assert Along(3, 2, ENDLESS).is_endless
    assert not Along.all_of(1 << 20).is_endless
    assert len(Along(0, 1, ENDLESS)) > 1 << 32


def test_what_there_is_without_arguments():
    assert Along().pieces.shape == runs_of(np.array([], np.int64)).shape == (0, 2)
    assert Along(count=3).indices.tolist() == [0, 1, 2]
