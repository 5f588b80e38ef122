"""What the processes of a job share about epochs, in the key-value store of Ray's GCS.

The GCS outlives each process of the job, so an entry stays when the process that made it ends. A key begins with the
job, so that jobs in one namespace do not mix. Then comes the *place*: either a dataset, `(token,)`, or a name in the
process that executes the dataset, `(process, name)`. Two trainers, or two trials of a tuning run, may each have a
dataset of the same name. The next job that names a dataset deletes the entries of jobs that have ended.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import ray

from ray_h5.errors import PositionError
from ray_h5.order.position import Position
from ray_h5.ray_data.internals.cluster import forget, has_ended, store, stored, stored_keys

Place: TypeAlias = tuple[str, ...]
"""`(token,)`, a dataset; or `(process, name)`, a name in the process that executes the dataset."""


@dataclass(frozen=True, slots=True)
class EpochSetting:
    """The arguments of one call of `set_epoch`.

    Attributes
    ----------
    epoch : int
        The epoch.
    position : Position, optional
        Where the epoch begins, if not at its first row.
    world_size : int
        Ranks that share the epoch.
    id : str
        Identifies the call, so that each call is applied once.
    by_name_alone : bool
        Whether the calling process did not read the dataset. It then means the dataset that was read last.
    """

    epoch: int
    position: Position | None = None
    world_size: int = 1
    id: str = ""
    by_name_alone: bool = False


@dataclass(frozen=True, slots=True)
class RunningEpoch:
    """State of the running epoch of a dataset; enough to make a `Position` in it.

    Attributes
    ----------
    start : Position
        Where it begins.
    is_resumable : bool
        False where a run that resumes begins this epoch again; the user was warned.
    why_not_resumable : str
        Why the rows of each rank do not show which rows are done; empty if they do.
    """

    start: Position
    is_resumable: bool = True
    why_not_resumable: str = ""

    def position(self, rows: int) -> Position:
        """Return the position after `rows` rows a rank.

        Raises
        ------
        PositionError
            If the rows of a rank do not show which rows are done.
        """
        if self.why_not_resumable:
            raise PositionError(self.why_not_resumable)
        return replace(self.start, rows=rows) if self.is_resumable else self.start


@dataclass(frozen=True, slots=True)
class JobStore:
    """The entries of one job.

    Attributes
    ----------
    job : str
        The id of the job.
    """

    job: str

    @classmethod
    def here(cls) -> JobStore:
        """Return the entries of the job that this process belongs to."""
        return cls(ray.get_runtime_context().get_job_id())

    def register(self, name: str, process: str, token: str) -> None:
        """Let a name mean a dataset: for the process that read it, and for processes that read none of that name."""
        # A process that read a dataset means its own by the name; all others mean the last one.
        store(self._key("read", name, process), token.encode())
        store(self._key("last", name), token.encode())

    def token(self, name: str, process: str) -> str | None:
        """Return the token of the dataset that a process read last by a name."""
        return _text(stored(self._key("read", name, process)))

    def last_token(self, name: str) -> str | None:
        """Return the token of the dataset that any process read last by a name."""
        return _text(stored(self._key("last", name)))

    def names(self) -> list[str]:
        """Return the names of all datasets."""
        prefix = self._key("last", "")
        return sorted(unquote(key[len(prefix) :]) for key in stored_keys(prefix))

    def put_setting(self, place: Place, setting: EpochSetting) -> None:
        """Store the setting of a place."""
        store(self._key("set", *place), pickle.dumps(setting))

    def setting(self, place: Place) -> EpochSetting | None:
        """Return the last setting of a place."""
        found: EpochSetting | None = _value(stored(self._key("set", *place)))
        return found

    def delete_setting(self, place: Place) -> None:
        """Delete the setting of a place."""
        forget(self._key("set", *place))

    def use_up(self, setting: EpochSetting) -> bool:
        """Take the position of a setting, and return whether this call got it: only the first one does."""
        # Atomic in the GCS: of several processes one adds the key.
        return store(self._key("used", setting.id), b"", overwrite=False)

    def is_used_up(self, setting: EpochSetting) -> bool:
        """Return whether the position of a setting was taken."""
        return stored(self._key("used", setting.id)) is not None

    def put_seed(self, place: Place, seed: int) -> None:
        """Store the seed of a run that was resumed."""
        store(self._key("seed", *place), b"%d" % seed)

    def seed(self, place: Place) -> int | None:
        """Return the seed of the run that was resumed last, if any was."""
        found = stored(self._key("seed", *place))
        return None if found is None else int(found)

    def put_running(self, place: Place, running: RunningEpoch) -> None:
        """Store the epoch that begins at a place."""
        store(self._key("run", *place), pickle.dumps(running))

    def running(self, place: Place) -> RunningEpoch | None:
        """Return the epoch that runs, or ran last, at a place."""
        found: RunningEpoch | None = _value(stored(self._key("run", *place)))
        return found

    def delete_ended_jobs(self) -> None:
        """Delete the entries of jobs that have ended."""
        keys = [key.split("/") for key in stored_keys("")]
        for job in {key[0] for key in keys} - {self.job}:
            parts = {part for key in keys if key[0] == job for part in key[1:]}  # ids of processes are among them
            if has_ended(job, parts):
                forget(f"{job}/", is_prefix=True)

    def _key(self, *parts: str) -> str:
        # Quoted, because names may contain slashes.
        return "/".join([self.job, *(quote(part, safe="") for part in parts)])


def _text(found: bytes | None) -> str | None:
    return None if found is None else found.decode()


def _value(found: bytes | None) -> Any:
    return None if found is None else pickle.loads(found)  # noqa: S301  another process of this job wrote it
