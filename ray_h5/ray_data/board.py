"""What the processes of a job tell each other about epochs.

It lies in the key-value store of Ray's GCS, which belongs to no process of the job: whoever made an entry may end. An
entry is named by its job, so that jobs in one namespace do not meet, and then by the dataset, or by the process that
executes it and its name: two trainers, or two trials of a tuning run, may each have a dataset of the same name. What
an ended job leaves is deleted by the next one that names a dataset.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

import ray

from ray_h5.errors import PositionError
from ray_h5.planning.position import Position
from ray_h5.ray_data.internals import forget, has_ended, store, stored, stored_keys


@dataclass(frozen=True, slots=True)
class Setting:
    """What `set_epoch` said.

    Attributes
    ----------
    epoch : int
        The epoch.
    position : Position, optional
        Where in it to begin.
    world_size : int
        Ranks that share it.
    id : str
        Tells calls apart, so that each is obeyed once.
    by_name_alone : bool
        Whether it was said by a process that did not read the dataset: it means the one that was read last.
    """

    epoch: int
    position: Position | None = None
    world_size: int = 1
    id: str = ""
    by_name_alone: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """State of the running epoch of a dataset; enough to make a `Position` in it.

    Attributes
    ----------
    start : Position
        Where it begins.
    in_order : bool
        Whether Ray keeps the order of blocks, without which there is no position.
    rows_are_kept : bool
        False where the user was told that a run that resumes begins its epoch again.
    unknown : str
        Why the rows of each rank do not tell which are done; empty if they do.
    """

    start: Position
    in_order: bool = True
    rows_are_kept: bool = True
    unknown: str = ""

    def position(self, rows: int) -> Position:
        """Return the position after `rows` rows a rank.

        Raises
        ------
        PositionError
            If the rows that a rank had do not tell which are done.
        """
        if self.unknown:
            raise PositionError(self.unknown)
        return replace(self.start, rows=rows) if self.rows_are_kept else self.start


@dataclass(frozen=True, slots=True)
class Board:
    """The entries of one job.

    Attributes
    ----------
    job : str
        Its id.
    """

    job: str

    @classmethod
    def here(cls) -> Board:
        """Return that of the job that this process belongs to."""
        return cls(ray.get_runtime_context().get_job_id())

    def register(self, name: str, process: str, token: str) -> None:
        """Let a name mean a dataset: for the process that read it, and for those that read none of that name."""
        store(self._key("read", name, process), token.encode())
        store(self._key("last", name), token.encode())

    def token(self, name: str, process: str) -> str | None:
        """Return the dataset that a process read last by a name."""
        return _text(stored(self._key("read", name, process)))

    def last(self, name: str) -> str | None:
        """Return the dataset that any process read last by a name."""
        return _text(stored(self._key("last", name)))

    def names(self) -> list[str]:
        """Return the names that there are."""
        prefix = self._key("last", "")
        return sorted(unquote(key[len(prefix) :]) for key in stored_keys(prefix))

    def set(self, place: tuple[str, ...], setting: Setting) -> None:
        """Keep a setting for a dataset, `(token,)`, or for the one of a name in a process, `(process, name)`."""
        store(self._key("set", *place), pickle.dumps(setting))

    def get(self, place: tuple[str, ...]) -> Setting | None:
        """Return the last setting of a place."""
        found: Setting | None = _value(stored(self._key("set", *place)))
        return found

    def unset(self, place: tuple[str, ...]) -> None:
        """Forget the setting of a place."""
        forget(self._key("set", *place))

    def use_up(self, setting: Setting) -> bool:
        """Take the position of a setting, and return whether it was there to be taken: the first one gets it."""
        return store(self._key("used", setting.id), b"", overwrite=False)

    def is_used_up(self, setting: Setting) -> bool:
        """Return whether the position of a setting was taken."""
        return stored(self._key("used", setting.id)) is not None

    def keep_seed(self, place: tuple[str, ...], seed: int) -> None:
        """Keep the seed of a run that was resumed."""
        store(self._key("seed", *place), b"%d" % seed)

    def seed(self, place: tuple[str, ...]) -> int | None:
        """Return the seed of the run that was resumed last, if any was."""
        found = stored(self._key("seed", *place))
        return None if found is None else int(found)

    def begin(self, place: tuple[str, ...], running: Running) -> None:
        """Say which epoch runs at a place."""
        store(self._key("run", *place), pickle.dumps(running))

    def running(self, place: tuple[str, ...]) -> Running | None:
        """Return the epoch that runs, or ran last, at a place."""
        found: Running | None = _value(stored(self._key("run", *place)))
        return found

    def sweep(self) -> None:
        """Delete what jobs that have ended left."""
        for job in {key.partition("/")[0] for key in stored_keys("")} - {self.job}:
            if has_ended(job):
                forget(f"{job}/", is_prefix=True)

    def _key(self, *parts: str) -> str:
        return "/".join([self.job, *(quote(part, safe="") for part in parts)])


def _text(found: bytes | None) -> str | None:
    return None if found is None else found.decode()


def _value(found: bytes | None) -> Any:
    return None if found is None else pickle.loads(found)  # noqa: S301  another process of ours wrote it
