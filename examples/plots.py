"""Draw a row, an augmentation, and how well a shuffle mixes; write PNG files into a folder.

python examples/plots.py --output figures
"""

from __future__ import annotations

import argparse
from pathlib import Path

import h5py
import numpy as np
from files import make_signals

import ray_h5
from ray_h5 import plots
from ray_h5.torch_data import H5Dataset, OrderSampler

COLUMNS = ["fhr_st", "fhr", "target", "weight", "guid", "epoch"]


def main() -> None:
    output = parse_arguments().output
    output.mkdir(parents=True, exist_ok=True)
    path = make_signals(size=0.05)[0]
    with ray_h5.RowReader(path) as reader:
        row = {name: values[0] for name, values in reader.read(COLUMNS, [7]).items()}
    plots.plot_row(row, title="row 7").savefig(output / "row.png", dpi=80)

    augment = ray_h5.SpecAugment("fhr_st", time_mask_param=60, freq_mask_param=12, num_time_masks=2, p=1.0)
    after = augment.apply(row["fhr_st"], key=1)
    plots.plot_augmentation(row["fhr_st"], after, column="fhr_st").savefig(output / "augmentation.png", dpi=80)

    figure = plots.plot_spread(class_orders(output), batch_size=64, what="class")
    figure.savefig(output / "spread.png", dpi=80)
    print(f"row.png, augmentation.png and spread.png are in {output}")


def class_orders(folder: Path) -> dict[str, np.ndarray]:
    """Return the classes in the order of an epoch, from a file that is sorted by class, 64 rows a chunk."""
    path = folder / "sorted.h5"
    with h5py.File(path, "w") as file:
        labels = np.repeat(np.arange(10, dtype="u1"), 2000)
        file.create_dataset("label", data=labels, chunks=(64,), compression="gzip")
        file.create_dataset("image", data=np.zeros((len(labels), 16), "f4"), chunks=(64, 16), compression="gzip")
    dataset = H5Dataset(path)
    shuffles = {"in path order": None, "by chunks": ray_h5.Shuffle("chunks"), "by rows": ray_h5.Shuffle("rows")}
    orders = {name: labels[list(OrderSampler(dataset, shuffle=shuffle))] for name, shuffle in shuffles.items()}
    path.unlink()
    return orders


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw a row, an augmentation, and how well a shuffle mixes.")
    parser.add_argument("--output", type=Path, default=Path("figures"), help="folder (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
