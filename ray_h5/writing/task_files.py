"""Rows of one write task -> files, and the files of all tasks -> a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ray_h5.errors import OutputExistsError, SchemaMismatchError
from ray_h5.messages import counted
from ray_h5.options import require
from ray_h5.writing.destination import Destination
from ray_h5.writing.file_arrays import PLAIN, ColumnWriter, Form, part_of
from ray_h5.writing.file_writer import OutputFile
from ray_h5.writing.layouts import Layout

if TYPE_CHECKING:
    from typing_extensions import Self

MODES = ("error", "append", "overwrite", "ignore")
_PART = re.compile(r"part-(\d+)-(\d+)\.h5")


@dataclass(frozen=True, slots=True)
class Part:
    """A file that a task wrote.

    Attributes
    ----------
    token : str
        What `Destination.publish` takes.
    task, number : int
        Which task, and which file of it.
    rows : int
        Its rows.
    forms : mapping of str to Form
        Its columns.
    """

    token: str
    task: int
    number: int
    rows: int
    forms: Mapping[str, Form]


class PartWriter:
    """Writes the rows of one task, to one file or several.

    Parameters
    ----------
    folder : Destination
        Where.
    task : int
        The number of the task.
    layout : Layout
        How columns are laid out.
    rows_per_file : int, optional
        The most rows of a file.
    threads : int
        Threads that encode.
    """

    def __init__(
        self, folder: Destination, task: int, layout: Layout, rows_per_file: int | None = None, threads: int = 1
    ) -> None:
        self._folder, self._task, self._layout = folder, task, layout
        self._rows_per_file, self._threads = rows_per_file, threads
        self._forms: Mapping[str, Form] = {}
        self._file: OutputFile | None = None
        self._columns: dict[str, ColumnWriter] = {}
        self._rows = 0
        """Rows of the file that is written."""
        self.parts: list[Part] = []

    def append(self, forms: Mapping[str, Form], columns: Mapping[str, Any], rows: int) -> None:
        """Add rows. All must have the same columns."""
        self._forms = self._forms or forms
        check_same(self._forms, forms, f"task {self._task}: a block")
        at = 0
        while at < rows:
            if self._file is None:
                self._open()
            room = rows - at if self._rows_per_file is None else self._rows_per_file - self._rows
            stop = min(rows, at + room)
            for name, writer in self._columns.items():
                writer.append(part_of(columns[name], at, stop))
            self._rows, at = self._rows + stop - at, stop
            if self._rows == self._rows_per_file:
                self._close()

    def _open(self) -> None:
        path = self._folder.temporary(f"part-{self._task}-{len(self.parts)}.h5")
        page = cast("int | None", self._layout.page)
        file = self._file = OutputFile(path, threads=self._threads, page=page)
        if any(form.kind not in PLAIN for form in self._forms.values()):
            file.group("/", {"encoding-type": "ray_h5", "encoding-version": "1"})  # groups that are columns are read so
        self._columns = {name: ColumnWriter(file, name, form, self._layout) for name, form in self._forms.items()}

    def _close(self) -> None:
        if self._file is None:
            return
        for writer in self._columns.values():
            writer.finish(self._rows)
        self._file.close()
        token = self._folder.keep(self._file.path)
        self.parts.append(Part(token, self._task, len(self.parts), self._rows, self._forms))
        self._file, self._rows = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._close()
        finally:
            if self._file is not None:
                self._file.abandon()


def check_same(expected: Mapping[str, Form], later: Mapping[str, Form], what: str) -> None:
    """Raise unless columns are the same, in the same forms."""
    if expected == later:
        return
    missing = [name for name in expected if name not in later]
    further = [name for name in later if name not in expected]
    if missing or further:
        raise SchemaMismatchError(
            f"{what} has columns {list(later)}; expected {list(expected)}, as the blocks before it have. All blocks of "
            "a dataset that is written need the same columns: choose them with columns=[...]."
        )
    name = next(name for name in expected if expected[name] != later[name])
    kinds = {expected[name].kind, later[name].kind}
    is_length = "ragged" in kinds or expected[name].shape[1:] == later[name].shape[1:]
    is_length = is_length and expected[name].dtype == later[name].dtype
    advice = f"If its rows differ in length, pass varying=[{name!r}]; otherwise cast" if is_length else "Cast"
    raise SchemaMismatchError(
        f"{what}: column {name!r} has {later[name]}; expected {expected[name]}, as the blocks before it have. {advice} "
        "or pad its rows in map_batches, so that all blocks have one dtype and shape."
    )


def check_mode(folder: Destination, mode: str) -> bool:
    """Return whether to write; raise if the folder holds something, and nothing says what to do with it."""
    require(mode in MODES, "mode", mode, f"one of {', '.join(MODES)}")
    if mode in {"append", "overwrite"} or folder.is_empty():
        return True
    if mode == "ignore":
        return False
    raise OutputExistsError(
        f"{folder.path}: the folder is not empty. Write to another one; or pass mode='append' to add files, "
        "mode='overwrite' to replace its HDF5 files, mode='ignore' to leave it as it is."
    )


def publish(folder: Destination, parts: Sequence[Part], mode: str) -> None:
    """Give the files of all tasks their names, ``part-{task}-{number}.h5``.

    The first task gets the next number that is free, if there are such files.

    Raises
    ------
    SchemaMismatchError
        If tasks disagree about columns.
    OutputExistsError
        If something wrote to the folder meanwhile; or if there is no file, and others would be removed.
    """
    if not check_mode(folder, mode):
        folder.abandon()
        return
    for part in parts[1:]:
        check_same(parts[0].forms, part.forms, f"task {part.task}")
    # An append takes whatever else there is; all other modes only what they know of.
    old = None if mode == "append" else folder.names() if mode == "overwrite" else []
    if old and not parts:
        raise OutputExistsError(
            f"{folder.path}: the dataset has no rows, and mode='overwrite' would remove {counted(len(old), 'file')} "
            "and write none. Nothing was changed. Look why no row is left; or remove the files."
        )
    try:
        folder.publish(_part_names(folder, parts, mode), old)
    except OutputExistsError:  # another write took a name meanwhile
        if mode not in {"append", "ignore"}:
            raise
        publish(folder, parts, mode)
    folder.abandon()


def _part_names(folder: Destination, parts: Sequence[Part], mode: str) -> dict[str, str]:
    """Return the names of files by their tokens. Two writes to a new folder want the same ones: one of them fails."""
    taken = folder.taken_names() if mode in {"append", "overwrite"} else set()
    after = max((int(match[1]) + 1 for name in taken if (match := _PART.fullmatch(name))), default=0)
    names = {part.token: f"part-{part.task}-{part.number}.h5" for part in parts}
    if mode != "append" and taken.isdisjoint(names.values()):
        return names
    return {part.token: f"part-{after + part.task}-{part.number}.h5" for part in parts}
