"""DLIO's HDF5 workloads read by ray_h5: a data loader, and a reader for DLIO's own loader.

Put this folder on PYTHONPATH, and name one of the classes on DLIO's command line:

    dlio_benchmark workload=... ++workload.reader.data_loader_sampler=index \
        ++workload.reader.data_loader_classname=dlio_h5.H5DataLoader

    dlio_benchmark workload=... ++workload.reader.reader_classname=dlio_h5.H5Reader

`H5DataLoader` shuffles exactly, over all files, and reads in as many threads as `read_threads` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.reader.reader_handler import FormatReader

from ray_h5.torch_data import RowReader, loader

COLUMN = "records"
"""Where DLIO's generator writes samples."""


class H5DataLoader(BaseDataLoader):
    """Batches of the samples themselves, as tensors; DLIO's own loaders hand out one image again and again."""

    def __init__(self, format_type: FormatType, dataset_type: DatasetType, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)

    def read(self) -> None:
        """Plan all epochs."""
        args = self._args
        if args.preprocess_time or args.preprocess_time_stdev:
            raise ValueError("preprocess_time: H5DataLoader does not simulate it; use H5Reader, or set it to 0")
        training = self.dataset_type is DatasetType.TRAIN
        self._batches = loader(
            args.file_list_train if training else args.file_list_eval,
            self.batch_size,
            columns=[COLUMN],
            shuffle=args.sample_shuffle is not Shuffle.OFF,
            seed=args.seed if args.sample_shuffle is Shuffle.SEED else None,
            rank=args.my_rank,
            world_size=args.comm_size,
            threads=args.read_threads,
            drop_last=True,
        )

    def next(self) -> Iterator[Any]:
        """Yield the batches of the next epoch, each of which has another order."""
        self._batches.set_epoch(self.epoch_number)
        self.epoch_number += 1  # before the first batch: DLIO stops at the last one, and what follows it never runs
        for batch in self._batches:
            yield batch[COLUMN]

    def finalize(self) -> None:
        """Do nothing: open files are few, and close by themselves."""


class H5Reader(FormatReader):
    """Samples one by one, for DLIO's own loaders, which choose them."""

    def __init__(self, dataset_type: DatasetType, thread_index: int, epoch: int) -> None:  # noqa: ARG002
        super().__init__(dataset_type, thread_index)

    def open(self, filename: str) -> RowReader:
        """Return a reader; a file that was open before costs almost nothing."""
        return RowReader(filename)

    def close(self, filename: str) -> None:
        """Close the reader of a file."""
        self.open_file_map[filename].close()

    def get_sample(self, filename: str, sample_index: int) -> None:
        """Read a sample, and keep it as `sample`: DLIO hands out an image of its own."""
        self.sample = self.open_file_map[filename].read([COLUMN], [sample_index])[COLUMN][0]

    def next(self) -> Iterator[Any]:
        """Yield batches in DLIO's order."""
        yield from super().next()

    def read_index(self, image_idx: int, step: int) -> Any:
        """Read the sample of a number."""
        return super().read_index(image_idx, step)

    def finalize(self) -> None:
        """Close what is open."""
        for filename, reader in self.open_file_map.items():
            if reader is not None:
                self.close(filename)
        self.open_file_map.clear()

    def is_index_based(self) -> bool:
        """Return that samples are read by number."""
        return True

    def is_iterator_based(self) -> bool:
        """Return that samples are read in order, too."""
        return True
