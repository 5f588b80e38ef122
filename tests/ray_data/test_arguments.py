"""The arguments of `read_h5`: shuffle, resources of tasks, order of blocks. All are checked before planning."""

import pytest
import ray.data
from ray.data import FileShuffleConfig

import ray_h5
from ray_h5 import Shuffle, set_epoch, train_batches
from ray_h5.errors import OptionError
from ray_h5.ray_data.arguments import as_shuffle, as_tail, remote_options
from ray_h5.ray_data.ray_internals import operators


@pytest.mark.parametrize(
    ("option", "given", "says"),
    [
        ("num_cpus", "a", "a number of 0 or more"),
        ("num_cpus", -1, "a number of 0 or more"),
        ("num_cpus", float("nan"), "a number of 0 or more"),
        ("num_cpus", float("inf"), "a number of 0 or more"),
        ("num_cpus", True, "a number of 0 or more"),
        ("memory", "1GB", "a number of 0 or more"),
        ("memory", -1, "a number of 0 or more"),
        ("concurrency", "a", "an integer of 1 or more"),
        ("concurrency", 0, "an integer of 1 or more"),
        ("ray_remote_args", "x", "a dict"),
        ("ray_remote_args", ["x"], "a dict"),
        ("preserve_order", "x", "True or False"),
        ("preserve_order", None, "True or False"),
        ("index_dir", 5, "a folder"),
    ],
)
def test_what_cannot_be_is_said_before_planning(option, given, says):
    with pytest.raises(OptionError, match=f"{option}=.*: expected {says}"):
        ray_h5.read_h5("/nowhere/a.h5", **{option: given})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, None),
        (False, None),
        ("rows", Shuffle("rows")),
        ("chunks", Shuffle("chunks")),
        ("files", Shuffle("files")),
        (Shuffle("chunks", 3, 64), Shuffle("chunks", 3, 64)),
        (FileShuffleConfig(seed=5), Shuffle("files", 5)),
    ],
)
def test_what_a_shuffle_means(given, meant):
    assert as_shuffle(given) == meant


def test_a_seed_is_drawn_where_none_is_given():
    assert as_shuffle(True) != as_shuffle(True)
    assert as_shuffle(FileShuffleConfig()) != as_shuffle(FileShuffleConfig())


@pytest.mark.parametrize("given", ["row", 3, ["rows"]])
def test_any_other_shuffle_is_an_error(given):
    with pytest.raises(OptionError, match="rows"):
        as_shuffle(given)


def test_an_order_that_never_changes_is_not_promised():
    with pytest.raises(OptionError, match=r"set_epoch\(ds, 0\)"):
        as_shuffle(FileShuffleConfig(seed=5, reseed_after_execution=False))


@pytest.mark.parametrize("rows", [None, 4])
def test_a_tail_that_is_misspelt_says_so(rows):
    with pytest.raises(OptionError, match=r"tail='dropp': expected 'keep', 'drop' or 'pad'. Did you mean 'drop'\?"):
        as_tail("dropp", rows)
    with pytest.raises(OptionError, match=r"tail=None: expected 'keep', 'drop' or 'pad'\."):
        as_tail(None, rows)


@pytest.mark.usefixtures("ray_local")
def test_a_dataset_in_place_of_its_key_is_not_printed():
    with pytest.raises(OptionError, match=r"expected the key of a dataset of the trainer, .* found a Dataset$"):
        train_batches(ray.data.range(3), 0, batch_size=2)


def test_datasets_have_no_names(tmp_path):
    with pytest.raises(OptionError, match=r"there is no option 'name'. Datasets have no names: set_epoch\(ds, 3\)"):
        ray_h5.read_h5(tmp_path, name="train")
    with pytest.raises(OptionError, match=r"found 'train'. Datasets have no names: write set_epoch\(ds, 3\)"):
        set_epoch("train", 3)


def of_today(source, *, num_gpus=None, label_selector=None, ray_remote_args=None): ...


def of_tomorrow(source, *, num_cpus=None, label_selector=None, **read_args): ...


def test_options_of_tasks_are_passed_by_name_where_ray_has_one():
    labels = {"label_selector": {"kind": "cpu"}}
    assert remote_options(of_today, {}) == remote_options(of_tomorrow, {}) == {}
    assert remote_options(of_today, labels) == remote_options(of_tomorrow, labels) == labels
    found = remote_options(of_today, {**labels, "max_retries": 2})
    assert found == {**labels, "ray_remote_args": {"max_retries": 2}}
    with pytest.raises(OptionError, match="max_retries: this release of Ray has no such option for of_tomorrow; exp"):
        remote_options(of_tomorrow, {**labels, "max_retries": 2})


@pytest.mark.usefixtures("ray_local")
def test_named_options_reach_the_tasks_without_a_warning(signals, recwarn):
    ds = ray_h5.read_h5(signals, columns=["label"], ray_remote_args={"label_selector": {"kind": "cpu"}, "max_calls": 1})
    (read,) = operators(ds)
    assert read.ray_remote_args["label_selector"] == {"kind": "cpu"}
    assert read.ray_remote_args["max_calls"] == 1
    assert not [each for each in recwarn if "ray_remote_args" in str(each.message)]
