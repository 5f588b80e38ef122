"""Windows over files: each file is a step, and an episode is several files."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

import numpy as np

from ray_h5.errors import OptionError
from ray_h5.rows.row_kind_options import Files, RowKind, check_episodes, naming_files
from ray_h5.rows.windows_option import WindowColumn, Windows

FOLDER = "folder"
"""Files in one folder are an episode."""


@dataclass(frozen=True, slots=True)
class Frames(RowKind):
    """Each file is a step of an episode of files, and a row is a window around it.

    A row belongs to the file of its step: its index, number and columns without offsets are those of `Files`.

    Attributes
    ----------
    files : Files
        The row kind of a file alone.
    windows : Windows
        The windows.
    episodes : str or mapping of str to object
        What files are an episode: those in one ``"folder"``, or with one value in a mapping. Or the name of a column
        with their values, until these are looked up.
    """

    files: Files
    windows: Windows
    episodes: str | Mapping[str, Any] = field(repr=False, compare=False)
    _known: str = field(default="", init=False)  # of all files: other neighbours make other windows
    _episodes: Mapping[str, tuple[str, tuple[str, ...], int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    episode: ClassVar[str] = "file"

    @property
    def missing(self) -> str:
        """The option of `Files`."""
        return self.files.missing

    @property
    def column(self) -> str | None:
        """The column with the episode of each file, if its values were not looked up."""
        return self.episodes if isinstance(self.episodes, str) and self.episodes != FOLDER else None

    def with_windows(self, windows: Windows) -> Frames:
        """Return the same kind with other windows."""
        kind = replace(self, windows=windows)
        object.__setattr__(kind, "_episodes", self._episodes)
        object.__setattr__(kind, "_known", self._known)
        return kind

    def of_files(self, paths: Sequence[str]) -> Frames:
        """Return the kind that knows the episodes of files, given these in the order of their steps."""
        folders = {path: path.rpartition("/")[0] for path in paths}
        names = folders if self.episodes == FOLDER else self._named(paths)
        in_episodes: dict[str, list[str]] = {}
        for path in paths:
            in_episodes.setdefault(names[path], []).append(path)
        episodes = {
            path: (name, files, at)
            for name, listed in in_episodes.items()
            for files in [tuple(listed)]
            for at, path in enumerate(files)
        }
        # Which files are neighbours, by their numbers: an index of files that had others says nothing of these rows.
        number = {name: number for number, name in enumerate(in_episodes)}
        which = np.array([number[names[path]] for path in paths], np.int64)
        kind = replace(self, files=naming_files(self.files, paths))
        object.__setattr__(kind, "_episodes", episodes)
        object.__setattr__(kind, "_known", f"{zlib.crc32(which.tobytes()):08x}")
        return kind

    def _named(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the episode of each file, as a mapping of the last parts of paths says, also without extension."""
        of: Any = self.episodes
        named, files_of = dict[str, str](), dict[Any, str]()
        for path in paths:
            there = PurePosixPath(path)
            parts = [(*there.parts[at:-1], name) for at in range(len(there.parts)) for name in (there.name, there.stem)]
            keys = (key for key in (path, *map("/".join, parts)) if key in of)  # the longest is the first
            if (key := next(keys, None)) is None:
                raise OptionError(
                    f"Windows: episode= has no entry for {path}, which has the name {there.stem!r}; expected "
                    "{file: episode} for all files"
                )
            if (other := files_of.setdefault(key, path)) != path:
                raise OptionError(
                    f"Windows: episode= has one entry, {key!r}, for {other} and for {path}. Write it with folders, "
                    f"such as {'/'.join(there.parts[-2:])!r}, for each."
                )
            named[path] = str(of[key])
        return named

    def episodes_of_files(self, paths: Sequence[str]) -> list[list[int]]:
        """Return the numbers of files among these, in the order of the steps of each episode."""
        number = {path: number for number, path in enumerate(paths)}
        files_of = {name: files for name, files, _ in map(self._at, paths)}
        return [[number[file] for file in files] for files in files_of.values()]

    def episode_of(self, path: str) -> str:
        """Return the name of the episode of a file."""
        return self._at(path)[0]

    def _at(self, path: str) -> tuple[str, tuple[str, ...], int]:
        if path not in self._episodes:
            raise OptionError(
                f"{path}: windows=Windows(..., episode=...) are of several files, and this is one "
                "of them alone; pass all of them to H5Dataset, loader or read_h5"
            )
        return self._episodes[path]

    def has_row(self, path: str) -> bool:
        """Return whether there is a window around a file."""
        _, files, at = self._at(path)
        low = min(column.ends[0] for column in self.windows.every)
        high = max(column.ends[1] for column in self.windows.every)
        before, after = self.windows.pad
        # Steps that fit, and of these each `stride`-th, counted in the episode: as windows in one file are.
        first = max(0, -low) if before == "drop" else 0
        last = len(files) - 1 - (max(0, high) if after == "drop" else 0)
        return first <= at <= last and (at - first) % self.windows.stride == 0

    def window(self, path: str, column: WindowColumn) -> tuple[list[str], np.ndarray]:
        """Return the files of a window around a file, and which are before (-1) or after (1) the episode: int64."""
        _, files, at = self._at(path)
        steps = at + np.array(column.offsets, np.int64)
        side = (steps >= len(files)).astype(np.int64) - (steps < 0)
        return [files[step] for step in np.clip(steps, 0, len(files) - 1).tolist()], side

    def neighbours(self, path: str) -> set[str]:
        """Return the files that the row of a file is read from."""
        return {file for column in self.windows.columns for file in self.window(path, column)[0]}


def with_episodes(rows: RowKind | None, windows: Windows | None) -> tuple[RowKind | None, Windows | None]:
    """Return rows and windows as files are opened with them: steps of rows of equal values, or of several files.

    Raises
    ------
    OptionError
        For an option of windows that means nothing for these rows.
    """
    if windows is None:
        return rows, windows
    if isinstance(rows, Files) and windows.episode is not None:
        for name in ("per_step", "constants", "episode_length"):
            if value := getattr(windows, name):
                raise OptionError(f"Windows: {name}={value!r}: with a file a step, each column has one value a step")
        if not ((of := windows.episode) and all(isinstance(file, str) for file in of)):
            raise OptionError(f"Windows: episode={of!r}: expected 'folder', a column, or {{file: episode}}")
        # The rows are those of `Files`: nobody above needs to know of windows.
        return Frames(rows, windows.of_episode(None), of), None
    check_episodes(rows, windows)
    if (by := getattr(rows, "by", None)) is None:
        return rows, windows
    windows = windows.of_episode(by)
    check_episodes(None, windows)
    if attrs := [*getattr(rows, "attrs", ())]:
        raise OptionError(
            f"Groups: by={by!r}, attrs={attrs}: with windows=, a row is a step, and has no number of them; "
            "leave attrs= out."
        )
    return None, windows
