"""Draw what the orders of a `Shuffle` look like, and what they do to batches; write PNG files into a folder.

python examples/which_shuffle.py --output examples/figures
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from ray_h5 import Shuffle, balance, plots
from ray_h5.torch_data import H5Dataset, OrderSampler

ROWS, FILES, CHUNK_ROWS = 240, 4, 12
ORDERS = {
    "in path order": None,
    'Shuffle("files")': Shuffle("files"),
    'Shuffle("chunks", window_rows=48)': Shuffle("chunks", window_rows=48),
    'Shuffle("rows")': Shuffle("rows"),
    'Shuffle(weights=balance("label"))': Shuffle(weights=balance("label")),
    'Shuffle(by_length="n_frames", run_rows=16)': Shuffle("rows", by_length="n_frames", run_rows=16),
}
COLOURS = np.array(["#4477aa", "#ee6677", "#ccbb44"])
MOST_BYTES = 60_000


def main() -> None:
    output = parse_arguments().output
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        small = write(Path(folder) / "small", ROWS, CHUNK_ROWS)
        save(draw_orders(H5Dataset(small), *labels_and_lengths(ROWS)), output / "orders.png")
        large = H5Dataset(write(Path(folder) / "large", 40 * ROWS, 64))
        labels, lengths = labels_and_lengths(40 * ROWS)
        shuffles = {
            "in path order": None,
            "by chunks": Shuffle("chunks"),
            "by rows": Shuffle("rows"),
            "balanced": Shuffle(weights=balance("label")),
        }
        orders = {name: labels[rows_of(large, shuffle)] for name, shuffle in shuffles.items()}
        save(plots.plot_spread(orders, 64, what="class"), output / "classes.png")
        shuffles = {"by rows": Shuffle("rows"), "by length": Shuffle("rows", by_length="n_frames")}
        orders = {name: lengths[rows_of(large, shuffle)] for name, shuffle in shuffles.items()}
        save(plots.plot_spread(orders, 64, what="length", are_lengths=True), output / "lengths.png")
    print(f"orders.png, classes.png and lengths.png are in {output}")


def labels_and_lengths(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each row, of which the first one is frequent and the last one rare, and its length."""
    labels = np.repeat([0, 1, 2], [rows * 7 // 10, rows * 2 // 10, rows // 10])
    return labels, np.random.default_rng(0).integers(20, 400, rows)


def write(folder: Path, rows: int, chunk_rows: int) -> list[str]:
    """Write some files that are sorted by class."""
    folder.mkdir()
    labels, lengths = labels_and_lengths(rows)
    paths = []
    for number, here in enumerate(np.split(np.arange(rows), FILES)):
        path = folder / f"f{number}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=np.zeros((len(here), 16), "f4"), chunks=(chunk_rows, 16), compression="gzip")
            file["label"], file["n_frames"] = labels[here], lengths[here]
        paths.append(str(path))
    return paths


def rows_of(dataset: H5Dataset, shuffle: Shuffle | None) -> list[int]:
    """Return the rows of an epoch in their order."""
    return list(OrderSampler(dataset, shuffle=shuffle))


def draw_orders(dataset: H5Dataset, labels: np.ndarray, lengths: np.ndarray) -> Figure:
    """Draw a dot for each position of an epoch: the row that comes there, and its class; or its length."""
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    panels: Any = figure.subplots(2, 3, sharex=True)
    for panel, (name, shuffle) in zip(panels.ravel(), ORDERS.items(), strict=True):
        rows = np.array(rows_of(dataset, shuffle))
        by_length = shuffle is not None and shuffle.by_length is not None
        panel.scatter(np.arange(len(rows)), lengths[rows] if by_length else rows, s=5, c=COLOURS[labels[rows]])
        panel.set_title(name, fontsize=8, family="monospace" if "(" in name else None)
        panel.set_ylabel("length of the row" if by_length else "row", fontsize=9)
        panel.tick_params(labelsize=8)
        if not by_length:
            for edge in range(0, ROWS, ROWS // FILES):
                panel.axhline(edge - 0.5, color="#bbbbbb", linewidth=0.6, zorder=0)
    for panel in panels[1]:
        panel.set_xlabel("position in the epoch", fontsize=9)
    for number, colour in enumerate(COLOURS):
        panels[0, 0].scatter([], [], s=14, c=colour, label=f"class {number}")
    panels[0, 0].legend(fontsize=8, loc="upper left", frameon=False)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a figure with a palette of colours, which needs a third of the bytes."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=80)
    picture = Image.open(drawn).convert("RGB").quantize(colors=64)
    picture.save(path, optimize=True)
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes; expected at most {MOST_BYTES}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw what the orders of a Shuffle look like.")
    parser.add_argument("--output", type=Path, default=Path("figures"), help="folder (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
