"""How many batches each call of a loader reads."""

import pytest

from ray_h5.torch_data.batches.loader_threads import CallSizes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("options", "row_bytes", "threads", "expected"),
    [
        ({}, MIB // 64, 0, [1, 4, 16, 16, 3]),  # at most 16 batches of 16 MiB
        ({}, MIB // 16, 0, [1, *[4] * 9, 3]),
        ({}, None, 0, [1] * 40),
        ({}, MIB // 64, 2, [1, 4, 16, 10, 5, 2, 1, 1]),  # the last ones are small, so that threads end together
        ({"has_ranges": True}, MIB // 64, 0, [1, 16, 23]),  # at most 80 MiB: chunks are decoded once a call
        ({"has_ranges": True}, MIB // 8, 0, [1, *[10] * 3, 9]),
        ({"call_bytes": 8 * MIB}, MIB // 64, 0, [4, 16, 16, 4]),
        ({"prefetch_factor": 7}, MIB // 64, 0, [1, 4, *[7] * 5]),
    ],
)
def test_the_first_call_is_small_and_others_grow_to_their_bounds(options, row_bytes, threads, expected):
    batches = [[0] * 64] * 40
    calls = CallSizes(lambda: row_bytes, **options).calls(iter(batches), len(batches), threads)
    assert [len(call) for call in calls] == expected
