"""What takes say of their boxes, by arithmetic alone: each row is one box of an array, as NumPy cuts it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.manifest.indices import Along
from ray_h5.manifest.layout import ColumnLayout
from ray_h5.manifest.takes import Take, rows_in_order
from ray_h5.manifest.value_type import ValueType
from tests.manifest.test_indices import along
from tests.properties import few


def layout_of(shape, chunk_shape=None):
    storage = "contiguous" if chunk_shape is None else "chunked"
    type_ = ValueType("number", np.dtype("<i8"), tuple(shape[1:]))
    return ColumnLayout("x", type_, shape[0], chunk_shape, storage=storage, offset=8)


@st.composite
def boxes(draw, shape):
    """Rows that are boxes along some axes, or one index of the first ones, reversed or not."""
    if draw(st.booleans()):
        axes = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))))
        return Take("x", axes, tuple(draw(st.integers(1, shape[axis])) for axis in axes))
    take = Take("x", (len(shape) - 1,), is_reversed=True) if draw(st.booleans()) else Take("x")
    return take.over(draw(st.integers(1, len(shape))), len(shape))


@few(150)
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_a_box_equals_what_numpy_cuts(data, shape):
    values, take = np.arange(np.prod(shape)).reshape(shape), data.draw(boxes(shape))
    layout = layout_of(shape)
    own = [axis for axis in range(len(shape)) if take.shape or axis not in take.axes]  # axes of a row
    free = [axis for axis in own if axis not in take.axes]
    order = own[::-1] if take.is_reversed else own
    taken = {axis: data.draw(along(shape[axis])) for axis in free if data.draw(st.booleans())}
    parts = [taken[axis][0] if axis in taken else None for axis in order]
    while parts and parts[-1] is None and data.draw(st.booleans()):
        parts.pop()
    take = take.part(tuple(parts), len(own))
    lengths = dict(zip(take.axes, take.shape or (1,) * len(take.axes), strict=True))
    lengths = {**{axis: len(at) for axis, (_, at) in taken.items()}, **lengths}
    assert take.box_shape(shape) == tuple(lengths.get(axis, n) for axis, n in enumerate(shape))
    assert take.extents(layout) == tuple(shape[axis] for axis in take.axes)
    for row in range(np.prod(take.extents(layout))):
        (corner,) = take.corners(np.array([row]), layout)
        at = dict(zip(take.axes, np.unravel_index(row, take.extents(layout)), strict=True))
        assert corner.tolist() == [at.get(axis, 0) for axis in range(len(shape))]
        box = values
        for axis, n in enumerate(take.box_shape(shape)):
            first = corner[axis]
            if axis in take.axes:  # what a box has past the end is zero
                box = np.concatenate([box, np.zeros_like(box)], axis).take(np.arange(first, first + n), axis)
            elif axis in taken:
                box = box.take(taken[axis][1], axis)
        assert box.shape == take.box_shape(shape) == take.layout(layout).shape[1:]
    assert take.layout(layout).shape[0] == np.prod(take.extents(layout))
    assert (take.layout(layout).chunk_shape, take.layout(layout).offset) == (None, None)


def test_rows_of_the_first_axes():
    assert Take("x").over(2, 4).axes == (0, 1)
    assert Take("x", (3,), is_reversed=True).over(2, 4).axes == (3, 2)


PLAIN = [
    (Take("x"), True),
    (Take("x", (0, 1)), True),
    (Take("x", taken=(None, None)), True),
    (Take("x", (1,)), False),
    (Take("x", (1, 0)), False),
    (Take("x", shape=(2,)), False),
    (Take("x", is_reversed=True), False),
    (Take("x", taken=(None, Along.range(0, 2))), False),
    (Take("x", of_value=Along.range(0, 4)), False),
    (Take("x", dtype=np.dtype("<f4")), False),
]


@pytest.mark.parametrize(("take", "is_plain"), PLAIN)
def test_rows_that_are_whole(take, is_plain):
    assert take.is_plain is is_plain


@pytest.mark.parametrize("chunks", [None, (1, 1, 2), (1, 2, 2), (2, 1, 2), (1, 4, 2), (1, 3, 6)])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_rows_that_follow_each_other_in_the_file(chunks, axes):
    """Chunks keep their numbers: each has the rows that NumPy gives it in the array with one axis of rows."""
    layout = layout_of((4, 6, 6), chunks)
    found = rows_in_order(layout, axes)
    rows = np.arange(4 * 6 * 6).reshape(4, 6, 6)
    if chunks is None or axes == 1:
        assert found is layout or (found.shape, found.chunk_shape) == (rows.reshape(-1, *rows.shape[axes:]).shape, None)
        return
    counts = [-(-n // size) for n, size in zip(rows.shape, chunks, strict=True)]
    numbers = np.arange(np.prod(counts)).reshape(counts)
    of = numbers[np.ix_(*(np.arange(n) // size for n, size in zip(rows.shape, chunks, strict=True)))]
    of = of.reshape(-1, *rows.shape[axes:])
    if found is None:
        is_in_order = all(size == 1 for size in chunks[: axes - 1]) and rows.shape[axes - 1] % chunks[axes - 1] == 0
        assert not is_in_order
        return
    assert found.shape == of.shape
    counts = [-(-n // size) for n, size in zip(found.shape, found.chunk_shape, strict=True)]
    numbers = np.arange(np.prod(counts)).reshape(counts)
    at = (np.arange(n) // size for n, size in zip(found.shape, found.chunk_shape, strict=True))
    assert np.array_equal(numbers[np.ix_(*at)], of)
