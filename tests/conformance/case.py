"""What a file of the corpus is: how it is made, and what reading it has to give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

Where = Literal["opening", "column", "read"]


@dataclass(frozen=True)
class Case:
    """One file.

    Attributes
    ----------
    name : str
        What is special about it.
    make : callable
        Writes the file, and others beside it if it needs them.
    error : type, optional
        The error that column "x" has to raise; None: every column equals what h5py delivers.
    where : str
        At which step the error shows: not before, and not after.
    refused : mapping of str to type
        Columns that cannot be read, beside others that can.
    columns : tuple of str, optional
        What to look at, if that is not everything.
    rows : tuple, optional
        Rows to ask for, where a file has more than can be read whole.
    allow : tuple of str
        Folders beside the file that links may lead into.
    disturb : callable, optional
        Changes the file between planning and reading.
    after : callable, optional
        Looks at the folder when all is done.
    child : bool
        Read it in a child process: libhdf5 may crash, or memory is measured.
    growth_mb : int, optional
        Memory that the child may take to read it.
    fuzz : bool
        Whether damaged copies of it are worth reading.
    """

    name: str
    make: Callable[[Path], Any]
    error: type[Exception] | None = None
    where: Where = "read"
    refused: tuple[tuple[str, type[Exception]], ...] = ()
    columns: tuple[str, ...] | None = None
    rows: tuple[Any, ...] | None = None
    allow: tuple[str, ...] = ()
    disturb: Callable[[Path], Any] | None = None
    after: Callable[[Path], Any] | None = None
    child: bool = False
    growth_mb: int | None = None
    fuzz: bool = True

    @property
    def healthy(self) -> bool:
        """Whether it is small and undamaged, so that it can be damaged on purpose."""
        return self.error is None and self.fuzz and self.rows is None and not self.child


def selections(count: int) -> list[Any]:
    """Return rows to ask for of a file that has `count`."""
    odd = [slice(None), slice(None, None, -2), slice(1, None, 3), np.arange(count) % 3 == 1, []]
    return [*odd, [count - 1, 0, count // 2, count - 1]] if count else odd
