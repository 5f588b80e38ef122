"""Groups as rows: each row is what h5py reads of its datasets, whatever these hold and however they are stored."""

import h5py
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_h5.planning.rows.kinds import Groups
from tests.planning.rows.kit import DTYPES, assert_value, make_dataset, open_rows, storages


@st.composite
def group_files(draw):
    """Draw some groups with the same columns, of which each has its own type; lengths and storage are as they come."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    columns = {}
    for name in ["x", "obs/y", "obs/deep/z"][: draw(st.integers(1, 3))]:
        dtype = draw(st.sampled_from(DTYPES))
        row_shape = draw(st.sampled_from([(), (), (3,), (2, 3), (0,), "single"]))
        shapes, options = [], []
        for length in lengths:
            if row_shape == "single":
                shapes.append(())
                options.append({"written": draw(st.sampled_from(["all", "none"])), "how": "contiguous", "fill": False})
                continue
            other = draw(st.sampled_from([row_shape, row_shape, tuple(n + 1 for n in row_shape)]))
            shapes.append((length, *other))
            options.append(draw(storages(other)))
        alike = draw(st.booleans())
        columns[name] = (dtype, shapes, [options[0]] * len(options) if alike else options)
    rows = draw(st.lists(st.integers(0, len(lengths) - 1), max_size=12))
    return lengths, columns, rows


@settings(max_examples=120)
@given(group_files())
def test_rows_equal_h5py(tmp_path_factory, drawn):
    lengths, columns, rows = drawn
    path = tmp_path_factory.mktemp("groups") / "a.h5"
    expected = {}
    with h5py.File(path, "w") as file:
        for i in range(len(lengths)):
            group = file.create_group(f"data/demo_{i}")
            for seed, (name, (dtype, shapes, options)) in enumerate(columns.items()):
                chosen = dict(options[i])
                if "chunks" in chosen:
                    chosen["chunks"] = chosen["chunks"][: len(shapes[i])]
                    if 0 in shapes[i][1:]:
                        chosen["chunks"] = tuple(max(1, n) for n in chosen["chunks"])
                    if not chosen["growing"]:
                        chosen["chunks"] = tuple(
                            min(c, max(n, 1)) for c, n in zip(chosen["chunks"], shapes[i], strict=True)
                        )
                        if 0 in shapes[i]:
                            chosen["growing"] = True
                expected[name, i] = make_dataset(group, name, dtype, shapes[i], chosen, 10 * i + seed)
    with open_rows(path, Groups("data/demo_*", key="demo")) as reader:
        found = reader.read([*columns, "demo"], rows)
        for name in columns:
            for place, row in enumerate(rows):
                assert_value(found[name][place], expected[name, row], f"{name} of row {row}")
    assert found["demo"].tolist() == [f"data/demo_{row}".encode() for row in rows]
