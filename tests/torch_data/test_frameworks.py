"""lightning and accelerate, by two processes each: every row reaches one rank, whatever splits the samplers."""

import json
import os
import socket
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import h5py
import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("frameworks_script.py")
ROWS = 500

# A run of each is enough.
pytestmark = [pytest.mark.xdist_group("frameworks"), pytest.mark.slow]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What both ranks saw, by framework and case."""
    file = tmp_path_factory.mktemp("frameworks") / "rows.h5"
    with h5py.File(file, "w") as made:
        made.create_dataset("row", data=np.arange(ROWS, dtype="f4")[:, None], chunks=(16, 1))

    @lru_cache
    def run(framework):
        folder = tmp_path_factory.mktemp(framework)
        (folder / "data").mkdir()
        with h5py.File(folder / "data" / "run.h5", "w") as made:  # what the snippets of the docs read
            made.create_dataset("image", (ROWS, 3, 32, 32), "f4", chunks=(16, 3, 32, 32))
            made["label"] = np.arange(ROWS)
        return two_processes(SCRIPT, framework, folder, file)

    return run


def two_processes(script, framework, folder, *arguments):
    """Run a script as torchrun does, without its third process; return what each rank saw, by case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    common |= {"TORCHELASTIC_RUN_ID": "ranks", "OMP_NUM_THREADS": 1, "ACCELERATE_USE_CPU": 1}
    command = [sys.executable, str(script), framework, str(folder), *map(str, arguments)]
    ranks = []
    for rank in (0, 1):
        environment = {
            **os.environ,
            **{k: str(v) for k, v in common.items()},
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        log = (folder / f"log{rank}").open("w")
        ranks.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [each.wait(timeout=300) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert codes == [0, 0], "\n".join((folder / f"log{rank}").read_text()[-3000:] for rank in (0, 1))
    first, second = (json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1))
    return {name: (first[name], second[name]) for name in first}


def check_once(cases, prefix, epochs=2, repeated=0):
    """Each row comes once in each epoch, except for the few that the last round repeats; the order differs by epoch."""
    found = {name: ranks for name, ranks in cases.items() if name.startswith(prefix)}
    assert len(found) > 2
    errors = {name: ranks for name, ranks in found.items() if any(isinstance(rank, str) for rank in ranks)}
    assert not errors
    for name, ranks in found.items():
        assert [len(rank) for rank in ranks] == [epochs, epochs], name
        for one, other in zip(*ranks, strict=True):
            assert set(one) | set(other) == set(range(ROWS)), name
            assert len(one) + len(other) <= ROWS + repeated, name
        if epochs > 1:
            assert ranks[0][0] != ranks[0][1], name


def in_turn(ranks, rows):
    """Return the rows of ranks that take blocks of so many rows in turn, in the order in which they were handed out."""
    starts = range(0, max(map(len, ranks)), rows)
    return [row for start in starts for rank in ranks for row in rank[start : start + rows]]


class TestLightning:
    def test_each_row_once_whenever_a_loader_is_made(self, seen):
        cases = seen("lightning")
        check_once(cases, "before/")
        check_once(cases, "inside/")

    def test_validation_and_prediction(self, seen):
        cases = seen("lightning")
        check_once(cases, "validate/", epochs=1)
        check_once(cases, "predict/", epochs=1)

    def test_the_order_is_ours_however_a_loader_is_made(self, seen):
        cases = seen("lightning")
        for name in ("inside/batch_sampler", "inside/sampler_stretch", "inside/loader", "inside/h5_batch_sampler"):
            assert cases[name] == cases["before/batch_sampler"], name

    def test_overfit_batches_turns_shuffling_off(self, seen):
        for name, ranks in seen("lightning").items():
            if name.startswith("overfit/"):
                assert all(rank[0] == rank[1] == sorted(rank[0]) for rank in ranks), (name, ranks)
                assert not set(ranks[0][0]) & set(ranks[1][0]), name

    @pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])
    def test_a_run_resumes_inside_an_epoch(self, seen, package):
        found = {name: ranks for name, ranks in seen(package).items() if name.startswith("resume/")}
        assert found
        for name, ranks in found.items():
            for rank in ranks:
                assert not isinstance(rank, str), (name, rank)
                whole, rest = rank
                assert 0 < len(rest) < len(whole), name
                assert whole[-len(rest) :] == rest, name

    def test_what_lightning_makes_again_shares_state(self, seen):
        (*one, epoch), (*other, _) = seen("lightning")["shared"]
        assert epoch == [1]
        assert len(one[0]) + len(other[0]) == ROWS - 128, "what was loaded before the trainer started counts"
        assert len(one[1]) + len(other[1]) == ROWS


class TestAccelerate:
    def test_each_row_once_however_a_loader_is_prepared(self, seen):
        cases = dict(seen("accelerate"))
        for name in ("own_shard", "with_ranks"):
            cases.pop(f"inside/{name}")
        # Its last batches are as large as the others: the first rows of the epoch fill them.
        for prefix in ("before/", "inside/", "split_batches/", "dispatch_batches/", "use_stateful_dataloader/"):
            check_once(cases, prefix, repeated=12)
        check_once(cases, "uneven/")

    def test_a_loader_that_is_not_prepared_is_split_too(self, seen):
        check_once(seen("accelerate"), "unprepared/")

    def test_a_run_that_skips_batches_goes_on_in_its_epoch(self, seen):
        cases = {name: ranks for name, ranks in seen("accelerate").items() if name.startswith("skip/")}
        assert len(cases) == 6
        for whole, rest in (rank for ranks in cases.values() for rank in ranks):
            assert whole == rest

    def test_both_splits_are_of_one_order(self, seen):
        """accelerate hands out the batches of an epoch in turn, and our ranks take its blocks in turn."""
        cases = seen("accelerate")
        assert cases["uneven/batch_sampler"] == cases["uneven/loader"]
        for epoch in (0, 1):
            by_batches, by_blocks = (
                in_turn([rank[epoch] for rank in cases[name]], rows)
                for name, rows in (("uneven/loader", 32), ("unprepared/loader", 128))
            )
            assert by_batches == by_blocks

    def test_what_would_lose_rows_raises(self, seen):
        cases = seen("accelerate")
        for error in cases["inside/own_shard"]:
            assert error.startswith("OptionError: EpochShuffleSampler is for a rank's own shard")
            assert "Leave this loader out of accelerator.prepare()" in error
        for error in cases["inside/with_ranks"]:
            assert error.endswith("Leave out rank and world_size.")


def test_the_snippets_of_the_docs(seen):
    cases = seen("docs")
    assert set(cases) == {"lightning", "accelerate", "transformers", "StatefulDataLoader"}
    for name, ranks in cases.items():
        assert not any(isinstance(rank, str) for rank in ranks), (name, ranks)
        half = [rank[: len(rank) // 2] for rank in ranks]
        for epoch in (half, [rank[len(rank) // 2 :] for rank in ranks]):
            assert set(epoch[0]) | set(epoch[1]) == set(range(ROWS)), name
        assert half[0] != ranks[0][len(ranks[0]) // 2 :], name
