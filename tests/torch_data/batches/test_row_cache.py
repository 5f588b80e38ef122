import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5.plan import row_cache
from ray_h5.plan.row_cache import RowCache
from ray_h5.torch_data import H5Dataset
from tests.kit.files import save
from tests.properties import few


@given(
    bound=st.integers(0, 12),
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), max_size=12),
    first=st.sampled_from([1, 64]),
    near=st.sampled_from([10, 7]),
)
@few(20)
def test_the_rows_read_first_stay_of_each_column_as_many_as_its_bound(bound, batches, first, near):
    """Of ten rows, those from `near` on may not be held."""
    specs = {"x": ((), np.dtype("i8")), "y": ((2,), np.dtype("i8")), "list": ((), np.dtype(object))}
    bounds, model = {"x": 10, "y": bound, "list": bound, "other": 0}, list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_cache, "_FIRST_ROWS", first)
        cache = RowCache(specs, near, {name: bounds[name] for name in ("y", "list")})
        for batch in batches:
            seen = {name: [] for name in bounds}

            def read(out, rows, places, seen=seen):
                for name, array in out.items():
                    seen[name] += rows.tolist()
                    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                        array[place] = np.full(row, row) if name == "list" else row

            out = {name: np.empty((len(batch), *shape), dtype) for name, (shape, dtype) in specs.items()}
            out["other"] = np.empty(len(batch))
            cache.read_through(out, np.array(batch), read)
            assert out["x"].tolist() == out["y"][:, 1].tolist() == out["other"].tolist() == batch
            assert [each.tolist() for each in out["list"]] == [[row] * row for row in batch]
            assert seen == {name: [row for row in batch if row not in model[:most]] for name, most in bounds.items()}
            for array in (*out.values(), *out["list"]):
                array[...] = -1  # nothing of it is shared
            model += [row for row in dict.fromkeys(batch) if row not in model and row < near]
            for names, most in ((["x"], 10), (["x", "y"], bound), (["x", "other"], 0)):
                held = sorted(model[:most])
                assert (cache.num_held(names), np.flatnonzero(cache.holds(np.arange(10), names)).tolist()) == (
                    len(held),
                    held,
                )
            assert len(cache.columns["y"]) <= min(bound, max(2 * len(model), first))


def test_nothing_is_looked_up_where_no_row_may_be_held(tmp_path):
    save(tmp_path / "a.h5", {"x": np.arange(12).reshape(6, 2)})
    dataset = H5Dataset(tmp_path / "a.h5", ["x"], kept_bytes=0)
    assert dataset[3]["x"].tolist() == [6, 7]
    assert dataset.source.row_cache.columns == {}
    assert dataset.source.row_cache.misses == 1
