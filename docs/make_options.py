"""The page of all options of public functions and classes, from signatures and docstrings, for the site.

``python docs/make_options.py`` prints it.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import ray_h5
import ray_h5.torch_data

READ_H5 = {
    "Which files": (
        "paths zip_files file_extensions ignore_missing_paths ignore_unreadable_files filesystem storage_options "
        "cache_dir cache_bytes index_dir allow_external"
    ),
    "What a row is": "rows windows axes",
    "Which columns, and their values": (
        "columns group sidecar attrs labels dtypes casting missing decode_cf include_paths include_row_ids "
        "include_row_keys include_steps include_padding"
    ),
    "The order, and the end of an epoch": "shuffle tail tail_rows",
    "Ray": "block_rows override_num_blocks preserve_order concurrency num_cpus memory ray_remote_args",
}
"""The options of `read_h5` in groups."""

NAMES = {
    "Reading": "H5Dataset loader kfold build_index RowReader H5Datasource",
    "What a row is": "Groups Grid Files Patches Windows",
    "What a column is": "csr ragged fields part joined Sidecar",
    "Order": "Shuffle balance OrderSampler OrderBatchSampler WeightedSampler H5DataLoader set_epoch Position",
    "Training with Ray": "train_batches data_config TorchCollate quiet labels_of",
    "Arrays": "Standardize SpecAugment GaussianNoise DecodeImage augmentation_defaults",
    "Writing": "write_h5 H5Datasink repack",
    "Classes of other programs": (
        "CombinedHDF5Dataset create_optimized_dataloader H5LazyDataset RankMemCachedH5Dataset EpochShuffleSampler "
        "OptimalDataLoaderFactory.create_training_loader DataLoaderPerformanceMonitor "
        "WorkerSafeStandardizedDataset WorkerSafeAugmentedDataset"
    ),
}
"""What the page lists after `read_h5`."""

HEAD = """# All options

This page is made from the docstrings. `help(ray_h5.read_h5)` prints the same. Options
that say which files are read, and what rows and columns are, have the same names everywhere; the first table has them.
"""

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)


def page() -> str:
    """Return the text of the page."""
    found = documented(ray_h5.read_h5)
    lines = [HEAD, "## read_h5", ""]
    for title, names in READ_H5.items():
        lines += [f"### {title}", "", *table({name: found.pop(name) for name in names.split()}, ray_h5.read_h5), ""]
    if found:
        raise SystemExit(f"read_h5: in no group: {', '.join(found)}")
    for title, names in NAMES.items():
        lines += [f"## {title}", ""]
        for name in names.split():
            lines += entry(name)
    return "\n".join(lines).rstrip() + "\n"


def entry(name: str) -> list[str]:
    """Return the lines of a function or class."""
    what: Any = ray_h5.torch_data if hasattr(ray_h5.torch_data, name.partition(".")[0]) else ray_h5
    for part in name.split("."):
        what = getattr(what, part)
    text = inspect.cleandoc(what.__doc__ or "").split("\n\n")[0].replace("\n", " ")
    lines = [f"### {name}", "", plain(text), ""]
    found, common = documented(what), documented(ray_h5.read_h5)
    own = {option: text for option, text in found.items() if text != common.get(option)}
    if own:
        lines += [*table(own, what), ""]
    if len(own) < len(found):
        of_files = "the options of [read_h5](#read_h5) for files, rows and columns"
        lines += [f"{'And ' if own else 'It takes '}{of_files}.", ""]
    return lines


def documented(what: Any) -> dict[str, str]:
    """Return what the docstring says of each parameter, by name."""
    text = inspect.cleandoc(what.__doc__ or "")
    parts = _SECTION.split(text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    found: dict[str, str] = {}
    names: list[str] = []
    for line in sections.get("Parameters", "").splitlines():
        if line and not line.startswith(" "):
            heads, _, kind = line.partition(" : ")
            names = [each.strip().lstrip("*") for each in heads.split(",")]
            found |= dict.fromkeys(names, f"*{kind}.* " if kind else "")
        else:
            found |= {each: f"{found[each]}{line.strip()} " for each in names}
    found.pop("options", None)
    return found


def table(options: dict[str, str], what: Any) -> list[str]:
    """Return a table of options with their defaults."""
    parameters = inspect.signature(what).parameters
    return ["| option | default | |", "|---|---|---|"] + [
        f"| `{name}` | {default(parameters.get(name))} | {plain(text)} |" for name, text in options.items()
    ]


def default(parameter: inspect.Parameter | None) -> str:
    """Return the default of a parameter as it is written."""
    if parameter is None or parameter.default is inspect.Parameter.empty:
        return ""
    shown = repr(parameter.default)
    return f"`{shown}`" if len(shown) <= 30 and "<" not in shown else ""


def plain(text: str) -> str:
    """Return text of a docstring as Markdown of one line."""
    text = text.replace("``", "`").replace("|", "\\|").strip()
    return textwrap.dedent(re.sub(r"\s+", " ", text))


if __name__ == "__main__":
    print(page(), end="")
