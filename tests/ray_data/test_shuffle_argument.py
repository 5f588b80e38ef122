"""What `read_h5` takes for its shuffle, without a Ray."""

import pytest
from ray.data import FileShuffleConfig

from ray_h5 import Shuffle
from ray_h5.errors import OptionError
from ray_h5.ray_data.arguments import as_shuffle


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
def test_what_is_meant(given, meant):
    assert as_shuffle(given) == meant


def test_a_seed_is_drawn_where_none_is_given():
    assert as_shuffle(True) != as_shuffle(True)
    assert as_shuffle(FileShuffleConfig()) != as_shuffle(FileShuffleConfig())


@pytest.mark.parametrize("given", ["row", 3, ["rows"]])
def test_anything_else_is_an_error(given):
    with pytest.raises(OptionError, match="rows"):
        as_shuffle(given)


def test_an_order_that_never_changes_is_not_promised():
    with pytest.raises(OptionError, match=r"set_epoch\(name, 0\)"):
        as_shuffle(FileShuffleConfig(seed=5, reseed_after_execution=False))
