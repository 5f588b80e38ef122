"""Keys of rows and of the lines of a table -> the line of each row; and keys that name a part of a dataset."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_h5.columns.schema import is_number, is_text
from ray_h5.errors import SchemaMismatchError
from ray_h5.manifest.partition import Partition
from ray_h5.messages import few
from ray_h5.tables.sidecar import Sidecar
from ray_h5.tables.table_files import Table

_MAX_LISTED = 10
_MAX_SHOWN = 60
_MAX_LABELS = 3
_ENDING = r"\.[^./]+$"
_SLICE = r"^(?P<name>[^$]+)\$(?P<row>[0-9]{1,18})(?P<crop>,[^$]*)?$"
_LAST_STOP = r"^.*[,:](?P<stop>[0-9]{1,18})$"
LENGTH = "_length"


@dataclass(frozen=True, slots=True, eq=False)
class RowKeys:
    """One part of the keys of rows, or of files.

    Attributes
    ----------
    name : str
        What the part is called, for messages.
    values : pyarrow.Array
        The values.
    kind : {"value", "number", "path", "group"}
        Values and row numbers are equal as they are. Paths and groups match by their last parts.
    by_tail : bool
        Whether they match if the last parts that tell them apart are equal.
    is_whole : bool
        Whether lines have whole paths or groups, as rows do.
    """

    name: str
    values: pa.Array
    kind: str = "value"
    by_tail: bool = False
    is_whole: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether values are equal as they are."""
        return self.is_whole or (self.kind in {"value", "number"} and not self.by_tail)

    def found_in(self, values: pa.Array, keys: pa.Array, table: str) -> np.ndarray:
        """Return the key of each value, by its last parts: integers, -1 for none."""
        return (_by_tail if self.by_tail else _by_end)(self, values, keys, table)


def by_tables(
    part: RowKeys, key: pa.Array, tables: np.ndarray, lines: Partition, name: str
) -> tuple[RowKeys, pa.Array]:
    """Return a part of keys of which each table names the rows of its own files, with whole keys of its lines.

    Parameters
    ----------
    part : RowKeys
        The keys of rows, or of files.
    key : pyarrow.Array
        Those of lines.
    tables : numpy.ndarray
        The table of each row, or file; -1 for none.
    lines : Partition
        The lines of each table.
    name : str
        The tables, for messages.
    """
    try:
        if not part.is_exact:
            part.found_in(part.values.unique(), key.unique().drop_null(), name)
    except SchemaMismatchError:  # `0.h5` is the end of paths in several folders, which have a table each
        numbers, rows = np.arange(len(key)), np.argsort(tables, kind="stable")
        first = np.searchsorted(tables[rows], np.arange(len(lines) + 1))
        for table, (begin, length) in enumerate(zip(lines.firsts.tolist(), lines.lengths.tolist(), strict=True)):
            own = rows[first[table] : first[table + 1]]
            encoded = key.slice(begin, length).dictionary_encode()
            found = part.found_in(part.values.take(pa.array(own)), encoded.dictionary, name)
            whole = np.full(len(encoded.dictionary) + 1, -1)
            whole[found[found >= 0]] = len(key) + own[found >= 0]
            of_lines = whole[_as_numbers(encoded.indices)]
            numbers[begin : begin + length] = np.where(of_lines < 0, numbers[begin : begin + length], of_lines)
        both = pa.chunked_array([key.cast(part.values.type), part.values]).combine_chunks()
        return replace(part, by_tail=False, is_whole=True), both.take(pa.array(numbers))
    return part, key


def lines_of(parts: Sequence[RowKeys], keys: Sequence[pa.Array], names: Sequence[str], table: str) -> np.ndarray:
    """Return the line of each row: integers, -1 where the table has none.

    Parameters
    ----------
    parts : sequence of RowKeys
        The parts of the keys of rows.
    keys : sequence of pyarrow.Array
        The same parts of the keys of lines.
    names : sequence of str
        The columns of the table that they are from.
    table : str
        The table, for messages.

    Raises
    ------
    SchemaMismatchError
        If the types do not agree, a line has no key, two have the same, or a key is the end of two paths.
    """
    converted = [_as_rows_have(part, key, name, table) for part, key, name in zip(parts, keys, names, strict=True)]
    rows = [row for row, _ in converted]
    lines = [line for _, line in converted]
    for line, name in zip(lines, names, strict=True):
        if line.null_count:
            at = int(np.argmax(line.is_null().to_numpy(zero_copy_only=False)))
            raise SchemaMismatchError(
                f"{table}: {line.null_count} of {len(line)} lines have no {name!r}, the first is entry {at}. Remove "
                "them, or choose another key."
            )
    of_rows, of_lines = rows[0], lines[0]
    if len(parts) > 1:
        of_rows, of_lines = _one_key(parts, rows, lines, table)
    elif not parts[0].is_exact:
        _check_unique(lines, names, table)
        return parts[0].found_in(of_rows, of_lines, table)
    numbers = _as_numbers(pc.index_in(of_rows, value_set=of_lines))
    # Arrow finds the first of two lines with one key: a line that some row has is no second one.
    unused = np.setdiff1d(np.arange(len(of_lines)), numbers)
    if (_as_numbers(pc.index_in(of_lines.take(pa.array(unused)), value_set=of_lines)) != unused).any():
        _check_unique(lines, names, table)
    return numbers


def lines_by_number(part: RowKeys, count: int, table: str) -> np.ndarray:
    """Return the line of each row whose key is its number, of `count` lines; -1 where there is none such."""
    numbers = _as_rows_have(part, pa.array([], pa.int64()), "row_id", table)[0].cast(pa.int64())
    return _as_numbers(pc.if_else(pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, count)), numbers, None))


def _as_numbers(numbers: pa.Array) -> np.ndarray:
    return numbers.fill_null(-1).to_numpy()


def _one_key(
    parts: Sequence[RowKeys], rows: Sequence[pa.Array], lines: Sequence[pa.Array], table: str
) -> tuple[pa.Array, pa.Array]:
    """Return keys of several parts as numbers: those of rows, null where the table lacks a part, and those of lines."""
    of_rows, of_lines = pa.array(np.zeros(len(rows[0]), np.int64)), pa.array(np.zeros(len(lines[0]), np.int64))
    for part, row, line in zip(parts, rows, lines, strict=True):
        encoded = line.dictionary_encode()
        values, count = encoded.dictionary, pa.scalar(len(encoded.dictionary), pa.int64())
        if part.is_exact:
            places = pc.index_in(row, value_set=values)
        else:
            at = part.found_in(row, values, table)
            places = pa.array(at, mask=at < 0)
        # The number of what precedes and of this part, and then that of both, so that numbers stay below the lines.
        of_lines = pc.add(pc.multiply(of_lines, count), encoded.indices.cast(pa.int64()))
        of_rows = pc.add(pc.multiply(of_rows, count), places.cast(pa.int64()))
        known = of_lines.unique()
        of_rows, of_lines = (pc.index_in(line, value_set=known).cast(pa.int64()) for line in (of_rows, of_lines))
    return of_rows, of_lines


def _check_unique(lines: Sequence[pa.Array], names: Sequence[str], table: str) -> None:
    """Raise if two lines have one key."""
    parts = pa.table([*lines], [str(number) for number in range(len(lines))])
    counts = parts.group_by(parts.column_names, use_threads=False).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts["count_all"], 1))
    if not twice.num_rows:
        return
    keys = zip(*(twice[name].slice(0, _MAX_LISTED).to_pylist() for name in parts.column_names), strict=True)
    shown = [repr(key[0]) if len(names) == 1 else str(key) for key in keys]
    more = f" and {twice.num_rows - len(shown)} more" if twice.num_rows > len(shown) else ""
    what = repr(names[0]) if len(names) == 1 else f"({', '.join(map(repr, names))})"
    raise SchemaMismatchError(
        f"{table}: {twice.num_rows} keys {what} are in more than one line: {', '.join(shown)}{more}. Remove the lines "
        "that are too many, or join by a key of several columns with on=[...]."
    )


def _as_rows_have(part: RowKeys, keys: pa.Array, name: str, table: str) -> tuple[pa.Array, pa.Array]:
    """Return keys of rows and of lines in one type: text, integers of 64 bits, or times as rows have them."""
    rows = part.values
    of_rows, of_lines = f"{part.name!r} of the files holds {rows.type}", f"{table}: the key {name!r} holds {keys.type}"
    if is_text(rows.type) and is_text(keys.type):
        return rows, keys
    if not (is_number(rows.type) or pa.types.is_temporal(rows.type) or is_text(rows.type)):
        raise SchemaMismatchError(f"{of_rows}; expected a key of text, integers or times")
    if is_number(rows.type) and (is_number(keys.type) or is_text(keys.type)):
        kind = pa.uint64() if pa.types.is_uint64(rows.type) else pa.int64()
        return _whole(rows, kind, of_rows), _whole(keys, kind, f"{of_lines}, where {of_rows}")
    if pa.types.is_temporal(rows.type) and (pa.types.is_temporal(keys.type) or is_text(keys.type)):
        try:
            return rows, keys.cast(rows.type)
        except pa.ArrowInvalid as exc:
            raise SchemaMismatchError(f"{of_lines}, which cannot be compared: {of_rows}: {exc}") from exc
    raise SchemaMismatchError(f"{of_lines}, and {of_rows}. Write both with one type.")


def _whole(values: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Return numbers, or text of numbers, as integers; pandas writes integers with a missing one among them as 1.0."""
    numbers, wrong = values, values[:0]
    if is_text(values.type):
        texts = pc.utf8_trim_whitespace(values)
        numbers = pc.replace_substring_regex(pc.if_else(pc.equal(texts, ""), None, texts), r"^\+|[.]0*$", "")
        is_whole = pc.match_substring_regex(numbers, r"^-?[0-9]{1,20}$")
        wrong = texts.filter(pc.fill_null(pc.invert(is_whole), False))
    why = f"{len(wrong)} are others: {few([repr(text[:_MAX_SHOWN]) for text in wrong[:_MAX_LISTED].to_pylist()])}"
    try:
        if not len(wrong):
            return numbers.cast(kind)
    except pa.ArrowInvalid as exc:
        why = str(exc)
    raise SchemaMismatchError(
        f"{what}, and keys have to be whole numbers: {why}. Write whole numbers, remove these lines, or join by "
        "another column of integers, text or times with on= and key=."
    )


def _by_end(part: RowKeys, rows: pa.Array, lines: pa.Array, table: str) -> np.ndarray:
    """Return the lines of paths, which a table may name by their last parts: ``b/c.h5`` and ``c.h5`` are ``/a/b/c.h5``.

    A file is also found by its name without the ending.
    """
    keys = pc.replace_substring_regex(lines, r"^(\./)+", "")
    if part.kind == "group":
        keys = pc.utf8_trim(keys, "/")
    first = _as_numbers(pc.index_in(keys, value_set=keys))
    if (again := np.flatnonzero(first != np.arange(len(first)))).size:
        one = int(again[0])
        raise _two_keys(part, keys[one], lines, int(first[one]), one, table)
    lines_of_rows = np.full(len(rows), -1, np.int64)
    is_whole = np.zeros(len(keys) + 1, bool)  # the last is for -1
    variants = [rows]
    if part.kind == "path":
        variants.append(pc.replace_substring_regex(rows, _ENDING, ""))
    for values in variants:  # a key that is a whole path is no end of another one
        is_whole[_as_numbers(pc.index_in(values, value_set=keys).drop_null())] = True
    for values in variants:
        is_used = np.zeros(len(keys) + 1, bool)
        is_used[lines_of_rows[lines_of_rows >= 0]] = True
        for at, is_end in _matches(values, keys):
            hit = (at >= 0) & ~(is_end & is_whole[at])
            # Of files `run` and `run.h5`, the key `run` is the first.
            clash = np.flatnonzero(hit & (lines_of_rows >= 0) & (lines_of_rows != at) & ~is_used[at])
            if len(clash):
                row = int(clash[0])
                raise _two_keys(part, rows[row], lines, int(lines_of_rows[row]), int(at[row]), table)
            new = hit & (lines_of_rows < 0)
            lines_of_rows[new] = at[new]
    # A key that is the end of two different paths names neither.
    has_line = np.flatnonzero(lines_of_rows >= 0)
    pairs = pa.table({"line": lines_of_rows[has_line], "path": rows.take(pa.array(has_line))}).group_by("line")
    counts = pairs.aggregate([("path", "count_distinct")])
    several = counts.filter(pc.greater(counts["path_count_distinct"], 1))
    if several.num_rows:
        line = several["line"][0].as_py()
        of_line = rows.take(pa.array(np.flatnonzero(lines_of_rows == line))).unique().to_pylist()
        raise SchemaMismatchError(
            f"{table}: {several.num_rows} keys are the end of more than one {part.name}, such as "
            f"{lines[line].as_py()!r}: {few([re.sub('^$', '/', path) for path in of_line], 5)}. Write the keys with "
            "more of the path."
        )
    return lines_of_rows


def _matches(values: pa.Array, keys: pa.Array) -> Iterator[tuple[np.ndarray, bool]]:
    """Yield for each value the key that it is, or -1; then the keys that are its end, by their number of parts."""
    yield _as_numbers(pc.index_in(values, value_set=keys)), False
    depths = pc.count_substring(keys, "/").unique().to_pylist()
    for depth in sorted(depth for depth in depths if depth is not None):
        yield _as_numbers(pc.index_in(_ends_of(values, depth), value_set=keys)), True


def _by_tail(part: RowKeys, rows: pa.Array, lines: pa.Array, table: str) -> np.ndarray:
    """Return the lines of texts by the last parts: as few as no other text of rows ends in, and no other line.

    Rows ``/data/p1/scan.h5`` and ``/data/p2/scan.h5`` take the lines ``/home/me/p1/scan.h5`` and ``p2/scan.h5``.
    """
    encoded, keys = rows.dictionary_encode(), pc.utf8_rtrim(pc.replace_substring(lines, "\\", "/"), "/")
    names, found = encoded.dictionary, np.full(len(encoded.dictionary), -1, np.int64)
    most = pc.max(pc.count_substring(pa.concat_arrays([keys, names.cast(keys.type)]), "/")).as_py() or 0
    for values in [names, *([pc.replace_substring_regex(names, _ENDING, "")] if part.kind == "path" else [])]:
        is_used = np.zeros(len(keys), bool)
        is_used[found[found >= 0]] = True
        for depth in range(most + 1) if (found < 0).any() else ():
            tails, ends = _ends_of(values, depth), _ends_of(keys, depth)
            once = np.flatnonzero(_are_single(ends) & ~is_used)
            at = np.append(once, -1)[_as_numbers(pc.index_in(tails, value_set=ends.take(pa.array(once))))]
            found = np.where((found < 0) & _are_single(tails), at, found)
            if (found >= 0).all():
                break
    # One that has no line may be one of several: none of its name was told apart.
    last, ends = _ends_of(names, 0), _ends_of(keys, 0)
    unclear = pc.and_(pc.is_in(last, ends), pc.invert(pc.is_in(last, last.filter(pa.array(found >= 0)))))
    if (alone := np.flatnonzero(unclear.to_numpy(zero_copy_only=False) & (found < 0))).size:
        name = last[int(alone[0])]
        those = [f"the {part.name} {text!r}" for text in names.filter(pc.equal(last, name)).to_pylist()]
        those += [f"the line {text!r}" for text in lines.filter(pc.equal(ends, name)).to_pylist()]
        raise SchemaMismatchError(
            f"{table}: match='tail': {few(those)} end in {name.as_py()!r} alike, and no further parts are the same in "
            "both. Write the keys of the table with the folders that the files have."
        )
    return np.append(found, -1)[_as_numbers(encoded.indices)]


def _are_single(texts: pa.Array) -> np.ndarray:
    """Return whether each text is there once."""
    numbers = _as_numbers(texts.dictionary_encode().indices)
    is_single: np.ndarray = np.bincount(numbers + 1, minlength=1)[numbers + 1] == 1
    return is_single


def _ends_of(texts: pa.Array, depth: int) -> pa.Array:
    """Return the last part of texts, and `depth` parts before it."""
    return pc.replace_substring_regex(texts, rf"^(?:.*/)?((?:[^/]*/){{{depth}}}[^/]*)$", r"\1")


def _two_keys(part: RowKeys, name: pa.Scalar, lines: pa.Array, one: int, other: int, table: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"{table}: {part.name} {name.as_py()!r} has two keys, {lines[one].as_py()!r} and {lines[other].as_py()!r}. "
        "Remove one of them if they mean one; or write the keys with more of the path."
    )


# Keys that name a part of a dataset ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Slices:
    """Keys of a table that name parts of datasets, as the tables of SeisBench have them: ``bucket0$5,:3,:6000``.

    Attributes
    ----------
    sidecar : Sidecar
        The table.
    table : Table
        Its lines.
    names : pyarrow.Array
        For each line, the dataset.
    rows : pyarrow.Array
        For each line, the row of the dataset.
    stops : pyarrow.Array
        For each line, where the last axis ends; null where it is not cut.
    """

    sidecar: Sidecar
    table: Table
    names: pa.Array
    rows: pa.Array
    stops: pa.Array

    def columns_of(self, columns: Iterable[str]) -> list[str]:
        """Return the columns that are named. The table may leave out the groups that they are in."""
        names = {*self.names.unique().to_pylist()}
        return [column for column in columns if not names.isdisjoint(_ends(column))]

    def lines(self, column: str, num_rows: int) -> np.ndarray:
        """Return the line of each row of a column: integers, -1 where the table has none."""
        names = {*self.names.unique().to_pylist()}
        name = next(part for part in _ends(column) if part in names)
        parts = [RowKeys("dataset", pa.repeat(name, num_rows)), RowKeys("row", pa.array(np.arange(num_rows)))]
        return lines_of(parts, [self.names, self.rows], (*self.sidecar.keys, "row"), self.table.name)

    def one_by_one(self, paths: Sequence[str], group: str, columns: Sequence[str]) -> SchemaMismatchError:
        """Return the error for files whose datasets must be read one by one; it prints the calls for the first one.

        If there is a table for each file, the first one is that of the first file: both are sorted.
        """
        key, on, path = self.sidecar.keys[0], self.sidecar.row_keys[0], paths[0]
        tables = [str(file) for file, _ in self.table.parts]
        table = tables[0] if len(tables) in {1, len(paths)} else tables
        own, ends = ", with its own table" * (len(tables) == len(paths)), ":"
        if len(paths) > 1:
            ends = f". These are of the first of {len(paths)} files; each has calls of its own{own}:"
        more = "" if key == on else f", key={key!r}"
        opened = repr(path) if group.strip("/") == "" else f"{path!r}, group={group!r}"
        said = f"sidecar=ray_h5.Sidecar({table!r}, on={on!r}{more})"
        labels = [self.sidecar.prefix + name for name in self.table.types if name != key][:_MAX_LABELS]
        chosen = [[column, column + LENGTH, *labels] for column in columns]
        calls = [f"  ray_h5.read_h5({opened}, columns={names!r}, {said})" for names in chosen]
        shown = calls[:_MAX_LISTED] + ([f"  and {len(calls) - _MAX_LISTED} more"] if len(calls) > _MAX_LISTED else [])
        head = (
            f"{self.table.name}: the keys {key!r}, such as {self.table.column(key)[0].as_py()!r}, are rows of "
            f"{len(columns)} datasets, which do not share rows. Read them one at a time, with the columns of the table "
            f"that you need, and join what is read by ds.union(...), or by ConcatDataset of H5Datasets{ends}"
        )
        return SchemaMismatchError("\n".join([head, *shown]))


def slices_of(sidecar: Sidecar, table: Table) -> Slices | None:
    """Return the keys of a table that name parts of datasets; None if they are other keys."""
    if len(sidecar.keys) != 1 or sidecar.keys[0] not in table.types:
        return None
    keys = table.column(sidecar.keys[0]).combine_chunks()
    if not len(keys) or not is_text(keys.type) or not pc.all(pc.match_substring_regex(keys[:1], _SLICE)).as_py():
        return None
    matches = pc.extract_regex(keys, _SLICE)
    if matches.null_count:
        return None
    names, rows, crop = (matches.field(name) for name in ("name", "row", "crop"))
    stops = pc.extract_regex(crop, _LAST_STOP)
    stop = pc.struct_field(stops, "stop").cast(pa.int64())
    return Slices(sidecar, table, names, rows.cast(pa.int64()), stop)


def _ends(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[at:]) for at in range(len(parts))]
