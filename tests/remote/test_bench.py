"""`ray-h5 bench remote` runs, with every case that its goals are about."""

import pytest

from ray_h5.bench import BENCHES, BenchOptions

pytestmark = pytest.mark.slow


def test_bench_remote(tmp_path):
    found = BENCHES["remote"](BenchOptions(0.002, folder=str(tmp_path)))
    assert {each.case for each in found if each.goal is not None} >= {
        "whole column",
        "plan contiguous",
        "plan paged",
        "plan default, one-row chunks",
        "plan 8 files, first time",
        "plan 8 files, with index_dir",
    }
    for each in found:
        if each.unit.startswith(("requests", "rounds", "listings")):
            assert each.goal is None or each.ours <= each.goal, each
