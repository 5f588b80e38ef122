"""What a row of files holds, as text that runs compare before they resume."""

from __future__ import annotations

from ray_h5.columns.schema import Cast
from ray_h5.index.row_index import RowIndex
from ray_h5.manifest.file_table import digest_of, digest_of_names
from ray_h5.rows.kinds.patch_rows import PatchesFound

_MOST_CHARACTERS = 300
"""Longer texts end in a digest: `take=` of `csr` may list thousands of genes."""


def data_of_rows(index: RowIndex) -> dict[str, str]:
    """Return what decides the values of a row of given files, by the name of the option that says it.

    Options that change no value stay out, such as threads and caches. Files themselves are compared by their names and
    rows: they may have been moved, or written with other chunks.
    """
    scope = index.scope
    drawn_in, zipped = "", ""
    if scope.zipped:
        beside = [scope.zipped.get(path, "").encode("utf-8", "surrogateescape") for path in index.files.all_paths()]
        zipped = f"with names of digest {digest_of_names(beside)}"
    if scope.rows is not None and scope.rows.is_drawn:
        # What blocks are drawn in, in each file: of arrays of other lengths, the same draws are other blocks.
        cut, pairs = len(index.files.folder), zip(index.files.all_paths(), index.tables, strict=True)
        known = [(path[cut:], table.found(PatchesFound)) for path, table in pairs if table is not None]
        drawn_in = "; ".join(f"{name} {text}" for name, found in known for text in found.drawn_in)
    # Columns: how they are made, and their types with the casts of the user. H5Dataset casts types that torch lacks,
    # and Ray does not: a run may go on in the other one.
    names, cast = index.names, Cast(index.cast.dtypes)
    specs = index.find(names)
    made = {column.name: column for column in scope.columns}
    of_tables = sorted(index.beside.columns.keys() & {*names})
    data = {
        "columns": ", ".join(f"{made.get(name, name)!r} {cast(specs[name])}" for name in sorted(names)),
        "group": scope.group.strip("/"),
        "rows": "" if scope.rows is None else repr(scope.rows),
        "windows": "" if scope.windows is None else scope.windows.in_steps(),
        "decode_cf": "True" if scope.decode_cf else "",
        "axes": scope.axes if scope.axes != "stored" else "",
        "labels": ", ".join(f"{label.name!r}: {label.by_value}" for label in index.labels),
        "zip_files": zipped,
        "drawn in": drawn_in,
        "tables": ", ".join(f"{name!r} of digest {index.beside.digest(name)}" for name in of_tables),
    }
    for option, text in data.items():
        if len(text) > _MOST_CHARACTERS:
            digest = digest_of(text.encode("utf-8", "surrogateescape"))
            data[option] = f"{text[: _MOST_CHARACTERS - 50]} ... (of digest {digest})"
    return {option: text for option, text in data.items() if text}
