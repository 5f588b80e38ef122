"""What the two kinds of repack have in common: inputs, the names of outputs, and how one is written."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from ray_h5.hdf5.checks.changed_files import check_state
from ray_h5.index.file_options import FileOptions
from ray_h5.storage.storage_of_path import storage_of
from ray_h5.writing.layouts import Layout
from ray_h5.writing.output import OutputFile
from ray_h5.writing.repack.result import Repacked
from ray_h5.writing.repack.target import Target

if TYPE_CHECKING:
    from ray_h5.manifest.layout import FileState

Progress = Callable[[int, int], object]
"""Called with the bytes, or rows, that are done, and with all of them."""


class Work:
    """What a repack does; `FileWork` copies files, `RowWork` writes rows."""

    def __init__(self, files: FileOptions, target: Target, layout: Layout, drop: bool, threads: int) -> None:
        self._files, self._target, self._layout = files, target, layout
        self._drop, self._threads = drop, threads
        self._before = self._after = 0
        self._dropped: list[str] = []

    def names(self) -> list[str]:
        """Return the names of the outputs."""
        raise NotImplementedError

    def survey(self) -> None:
        """Raise for what cannot be kept, before something is written."""
        raise NotImplementedError

    def run(self, kept: Sequence[str], verify: bool, progress: Progress) -> None:
        """Write the outputs, except those that are there."""
        raise NotImplementedError

    def result(self) -> Repacked:
        """Return what was done."""
        raise NotImplementedError

    def fingerprint(self, options: Mapping[str, Any]) -> str:
        """Return what decides the contents of the outputs."""
        states = [(path, repr(self._state(path))) for path in self._files.paths]
        said = {name: value for name, value in options.items() if name not in {"storage_options", "cache_dir"}}
        text = repr((states, self._layout, self._drop, sorted(said.items(), key=str), self._further()))
        return hashlib.sha256(text.encode()).hexdigest()

    def _further(self) -> Any:
        return None

    def _state(self, path: str) -> Any:
        return self._files.states.get(path) or storage_of(path, self._files.scope.storage).check(path)

    def _on_disk(self, paths: Iterable[str]) -> list[str]:
        """Return those of some inputs that libhdf5 opens where they are."""
        return [path for path in paths if not storage_of(path, self._files.scope.storage).is_fetched]

    def _check_unchanged(self, states: Mapping[str, FileState]) -> None:
        """Raise if inputs changed since they had these states. Requests for those in a store say which they want."""
        for path in self._on_disk(states):
            check_state(path, states[path], self._files.scope.storage)

    def _input_names(self) -> list[str]:
        """Return a name for each input: its path below the folder that all of them share."""
        paths = self._files.paths
        if len(paths) == 1:
            return [os.path.basename(paths[0])]
        folders = [path.split("/")[:-1] for path in paths]
        shared = 0
        while all(len(each) > shared for each in folders) and len({each[shared] for each in folders}) == 1:
            shared += 1
        return ["/".join(path.split("/")[shared:]) for path in paths]

    def _write(
        self,
        name: str,
        write: Callable[[OutputFile], object],
        check: Callable[[str], object] | None,
        creation: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Write an output, look at it, and give it its name."""
        temporary = self._target.temporary(name)
        page = cast("int | None", self._layout.page)
        with OutputFile(temporary, threads=self._threads, page=page, **creation) as file:
            write(file)
            file.close()
            if check is not None:
                file.verify()
                check(temporary)
            self._after += Path(temporary).stat().st_size
            self._target.put(temporary, name)
