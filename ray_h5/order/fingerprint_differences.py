"""What differs between the data and orders of two positions, for the message of an error."""

from __future__ import annotations

from ray_h5.order.fingerprint import Fingerprint

_CHUNKS = "the widest column decides: columns= of the run before, and files that are stored as they were"


def differences(one: Fingerprint, other: Fingerprint) -> list[str]:
    """Return the differences, each in the form ``"3 files, not 4"``: the value of `one` first."""
    found = [*_file_differences(one, other), *_row_differences(one, other), *_shuffle_differences(one, other)]
    return found + [
        f"{name} {_apart(one.data.get(name, 'not said'), other.data.get(name, ''))}, not "
        f"{_apart(other.data.get(name, 'said'), one.data.get(name, ''))}"
        for name in sorted({*one.data} | {*other.data})
        if one.data.get(name) != other.data.get(name)
    ]


def _apart(one: str, other: str) -> str:
    """Return those parts of a text that another one lacks."""
    return "; ".join(part for part in one.split("; ") if part not in other.split("; ")) or one


def _file_differences(one: Fingerprint, other: Fingerprint) -> list[str]:
    found = []
    if one.num_files != other.num_files:
        found.append(f"{one.num_files} files, not {other.num_files}")
    elif one.names != other.names:
        found.append("files of other names")
    if one.file_rows != other.file_rows:
        found.append(f"{one.file_rows} rows{' in the files' * bool(one.num_files)}, not {other.file_rows}")
    elif one.num_files == other.num_files and one.starts != other.starts:
        found.append("files with other numbers of rows")
    return found


def _row_differences(one: Fingerprint, other: Fingerprint) -> list[str]:
    if one.selection == other.selection:
        return []
    if one.num_rows != other.num_rows:
        return [f"a predicate that selects {_selected(one)}, not {_selected(other)}"]
    return [f"a predicate that selects {_selected(one)}, but not the same"] if one.starts == other.starts else []


def _selected(of: Fingerprint) -> str:
    return f"{of.num_rows} rows" if of.selection else f"all {of.num_rows} rows"


def _shuffle_differences(one: Fingerprint, other: Fingerprint) -> list[str]:
    if one.unit != other.unit:
        return [f"{_drawn(one.unit)}, not {_drawn(other.unit)}"]
    found = []
    if one.window_rows != other.window_rows:
        found.append(f"window_rows {one.window_rows}, not {other.window_rows}")
    same_rows = (one.names, one.starts, one.selection) == (other.names, other.starts, other.selection)
    if one.chunk_group_rows != other.chunk_group_rows:
        found.append(f"chunks of {one.chunk_group_rows} rows, not {other.chunk_group_rows} ({_CHUNKS})")
    elif same_rows and one.chunk_groups != other.chunk_groups:
        found.append(f"other rows that share chunks ({_CHUNKS})")
    if one.rows_per_epoch != other.rows_per_epoch:
        found.append(f"rows_per_epoch {one.rows_per_epoch}, not {other.rows_per_epoch}")
    if one.draws != other.draws:
        found.append(f"{_weighted(one.draws)}, not {_weighted(other.draws)}")
    if one.lengths != other.lengths:
        found.append(f"{_by_length(one.lengths)}, not {_by_length(other.lengths)}")
    return found


def _drawn(unit: str | None) -> str:
    return "in path order" if unit is None else f"shuffled by {unit}"


def _weighted(draws: str) -> str:
    return f"weights of digest {draws}" if draws else "no weights"


def _by_length(lengths: str) -> str:
    return f"by_length (lengths, window_rows and run_rows of digest {lengths})" if lengths else "no by_length"
