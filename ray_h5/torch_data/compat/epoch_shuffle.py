"""The shuffle of a rank's own shard."""

from __future__ import annotations

from ray_h5.errors import OptionError
from ray_h5.options import as_integer, names_options
from ray_h5.order.draws.shuffle import Shuffle
from ray_h5.order.epoch_order import Order
from ray_h5.order.fingerprint import fingerprint
from ray_h5.torch_data.ranks import OwnRank, asked_by_accelerate
from ray_h5.torch_data.samplers import EpochState, RankSampler


@names_options
class EpochShuffleSampler(RankSampler):
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
        self.shuffle = bool(shuffle)
        self.seed = as_integer("seed", seed, 0)
        order = Order(self.data_len, Shuffle("rows", self.seed) if shuffle else None)
        self._state = EpochState(order, fingerprint(None, None, order))

    @property
    def base_seed(self) -> int:
        """Another name of `seed`."""
        return self.seed

    def _own_rank(self) -> OwnRank:
        self._check_not_split()
        return OwnRank(0, 1)

    def _check_not_split(self) -> None:
        if asked_by_accelerate():
            raise OptionError(
                "EpochShuffleSampler is for a rank's own shard, and accelerate splits the batches of a prepared "
                "loader over the ranks: rows would be lost. Leave this loader out of accelerator.prepare(). For a "
                "dataset that all ranks read, write OrderSampler(dataset, seed=...)."
            )
