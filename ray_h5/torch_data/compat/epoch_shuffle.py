"""The shuffle of a rank's own shard."""

from __future__ import annotations

from ray_h5.errors import OptionError
from ray_h5.options import as_integer, names_options
from ray_h5.torch_data.ranks import OwnRank
from ray_h5.torch_data.samplers import OrderSampler


@names_options
class EpochShuffleSampler(OrderSampler):
    """Shuffles a dataset that is a rank's own shard, differently in each epoch.

    It is not split over ranks. For a dataset that all ranks read, use `OrderSampler`.

    Parameters
    ----------
    data_len : int
        Samples of the shard.
    seed : int
        Zero or more. The order is a function of (seed, epoch).
    shuffle : bool
        False yields ``0 ... data_len - 1``.
    """

    def __init__(self, data_len: int, seed: int = 0, shuffle: bool = True) -> None:
        self.data_len = as_integer("data_len", data_len, 0, instead="; pass len(dataset)")
        self.base_seed = as_integer("seed", seed, 0)
        super().__init__(range(self.data_len), shuffle=bool(shuffle), seed=self.base_seed, rank=0, world_size=1)

    @property
    def seed(self) -> int:
        """The seed, also without a shuffle; `base_seed` is another name of it."""
        return self.base_seed

    def _check_split(self, own: OwnRank, is_asked: bool) -> None:  # noqa: ARG002  the shard of one rank
        raise OptionError(
            "EpochShuffleSampler is for a rank's own shard, and accelerate splits the batches of a prepared "
            "loader over the ranks: rows would be lost. Leave this loader out of accelerator.prepare(). For a "
            "dataset that all ranks read, write OrderSampler(dataset, seed=...)."
        )
