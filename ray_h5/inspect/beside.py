"""HDF5 files beside the files that are looked at, and the `Sidecar` that joins their rows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.compute as pc

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import RayH5Error, UnsupportedColumnError
from ray_h5.index.file_options import FileOptions
from ray_h5.likely_rows.arguments import made
from ray_h5.likely_rows.suggestions import Suggestion
from ray_h5.likely_rows.usual_names import words
from ray_h5.messages import counted
from ray_h5.options import DEFAULT_EXTENSIONS
from ray_h5.storage.addresses import is_url
from ray_h5.storage.find_files import list_paths
from ray_h5.storage.natural_order import natural_key

_MOST_LISTED, _MOST_FOLDERS, _MOST_OPENED, _MOST_KEYS, _MOST_ROWS = 1000, 8, 16, 3, 10_000_000
_NUMBERS = {"idx", "idxs", "index", "indices", "row", "rows", "number"}
"""What columns are called that hold numbers of rows of another file."""

_Columns: TypeAlias = Mapping[str, tuple[ColumnSpec, int]]
"""The columns of a file, and how many rows each has."""


def sidecars(files: FileOptions) -> Iterator[Suggestion]:
    """Yield for files on a disk the `Sidecar` of each file beside the first one whose rows join theirs.

    Its rows have the same ids, or numbers that the files have, or it has the name of the file and as many rows. What
    joins is planned before it is suggested. Of two files that are given, one may be beside the other.
    """
    source, paths = files.source, list(files.paths)
    if source.tables or source.zip_files is not None or any(map(is_url, paths)) or not files.scope.by_axis:
        return
    own = _columns(files, paths[0])
    if len(paths) == 2 and own.keys() != (second := _columns(files, paths[1])).keys():
        of_both = [(paths[0], own), (paths[1], second)]
        for (path, ours), (other, theirs) in (of_both, of_both[::-1]):
            for found in _joining(replace(files, paths=[path]), ours, theirs, _written(files, other)):
                yield replace(found, paths=repr(_written(files, path)))
                return
        return
    for path, written, is_of_name in _near(files):
        others = _columns(files, path)
        # A file with the same columns is the next one of a dataset.
        if own and others and others.keys() != own.keys():
            yield from _joining(files, own, others, written, is_of_name=is_of_name)


def _joining(
    files: FileOptions, own: _Columns, others: _Columns, written: str, *, is_of_name: bool = False
) -> Iterator[Suggestion]:
    """Yield the `Sidecar` that joins the rows of a file, if there is one."""
    of_each, base = "{stem}" in written, os.path.basename(written)
    name = f"{written}, for each file," if of_each else base
    shared = [key for key, (spec, _) in own.items() if spec.is_id and key in others and others[key][0].is_id]
    # Texts are ids more often than numbers are, which may be labels.
    shared.sort(key=lambda key: own[key][0].kind != "string")
    ways: list[tuple[str, dict[str, Any]]] = []
    ways += [(f"{name} has {key!r}, as these rows", {"on": key}) for key in shared[:_MOST_KEYS]]
    if is_of_name:
        ways.append((f"{name} has a row for each of these", {"on": "row" if of_each else "row_id"}))
    elif not of_each:
        rows = max(rows for _, rows in others.values())
        said = f"{name} has {counted(rows, 'row')}, and {{!r}} their numbers"
        ways += [(said.format(key), {"on": key, "key": "row_id"}) for key in _numbers(files, own, rows)]
    for found, how in ways:
        if own.keys() & {*others} - {how["on"]}:  # columns of one name
            how["prefix"] = (Path(base.replace("{stem}", "")).stem.strip("_-.") or "other") + "/"
        suggestion = Suggestion(found, "if they belong together", {"sidecar": made("Sidecar", written, **how)})
        # Planning joins all rows: keys that are there twice, or not at all, are no way.
        if any(files.that_run([suggestion], files.paths)):
            yield suggestion
            return


def _numbers(files: FileOptions, own: _Columns, rows: int) -> Iterator[str]:
    """Yield columns with numbers of rows of a file, up to its last one."""
    named = [name for name, (spec, _) in own.items() if spec.is_id and spec.kind == "number"]
    for name in [name for name in named if _NUMBERS & {*words(name)}][:_MOST_KEYS]:
        with contextlib.suppress(RayH5Error):
            index = files.plan([name])
            if index.num_rows <= _MOST_ROWS:
                ends = pc.min_max(index.values([name], stored=True)[name]).as_py()
                # Up to the last row: many columns of integers are below the number of rows of any longer file.
                if ends["min"] is not None and ends["min"] >= 0 and ends["max"] == rows - 1:
                    yield name


def _columns(files: FileOptions, path: str) -> _Columns:
    columns = {}
    with contextlib.suppress(RayH5Error, OSError), files.scope.open(path) as reader:
        for name, layout in reader.layout.columns.items():
            with contextlib.suppress(UnsupportedColumnError):
                columns[name] = ColumnSpec.of(layout), layout.num_rows
    return columns


def _near(files: FileOptions) -> Iterator[tuple[str, str, bool]]:
    """Yield files beside the first one: their path, how it is written, and whether it has the name of the first one.

    They lie in its folder; or, of several files, have their names in a folder beside it, such as ``labels``. A folder
    among many is one of many samples or of something else, and nothing beside it is opened.
    """
    first, several = files.paths[0], len(files.paths) > 1
    folder, name = os.path.split(first)
    stem, ending = Path(name).stem, Path(name).suffix
    folders = [above for above in _listed(os.path.dirname(folder)) if os.path.isdir(above)] if several else []
    for path in [os.path.join(above, name) for above in folders if len(folders) <= _MOST_FOLDERS]:
        if os.path.isfile(path) and path not in files.paths:
            yield path, f"../{os.path.basename(os.path.dirname(path))}/{{stem}}{ending}", True
    endings = tuple(f".{each}" for each in DEFAULT_EXTENSIONS)
    listed = [path for path in _listed(folder) if path.endswith(endings) and path not in files.paths]
    of_name = {path for path in listed if stem in os.path.basename(path)}
    for path in sorted(listed, key=lambda path: (path not in of_name, natural_key(path)))[:_MOST_OPENED]:
        if several and path in of_name:
            yield path, os.path.basename(path).replace(stem, "{stem}", 1), True
        else:
            yield path, _written(files, path), path in of_name


def _listed(folder: str) -> Sequence[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.path for entry, _ in zip(entries, range(_MOST_LISTED), strict=False))
    except OSError:
        return []


def _written(files: FileOptions, path: str) -> str:
    """Return the path as the user writes those of the files: from the current folder, or from the root."""
    is_absolute = all(os.path.isabs(os.fspath(each)) for each in list_paths(files.source.paths))
    return path if is_absolute else os.path.relpath(path)
