"""Files that are read together by row: ``x_0.h5`` with ``y_0.h5``."""

from __future__ import annotations

from collections.abc import Sequence

from ray_h5.errors import OptionError
from ray_h5.messages import few


class ZippedFiles:
    """For each file, the one whose columns join its own. It is hashed once: it is a part of many keys.

    Parameters
    ----------
    pairs : sequence of (str, str)
        The files.
    """

    __slots__ = ("_hash", "_of")

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._of = dict(pairs)
        self._hash = hash(tuple(self._of.items()))

    def of(self, path: str) -> str:
        """Return the file that is read beside one; empty if there is none."""
        return self._of.get(path, "")

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ZippedFiles) and self._of == other._of)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[ZippedFiles], tuple[list[tuple[str, str]]]]:
        return ZippedFiles, (list(self._of.items()),)

    def __repr__(self) -> str:
        return f"ZippedFiles({len(self._of)} files)"


def zipped(paths: Sequence[str], others: Sequence[str]) -> ZippedFiles:
    """Return the pairs of files, each in its order.

    Raises
    ------
    OptionError
        If there are more of one than of the other, or a file is in both.
    """
    known = {*paths}
    if both := [path for path in others if path in known]:
        raise OptionError(f"zip_files: {few(both)} is also in the paths; expected other files, one beside each")
    if len(paths) != len(others):
        alone = [*paths[len(others) :], *others[len(paths) :]]
        raise OptionError(
            f"zip_files: expected a file for each of {len(paths)}, found {len(others)}. In their order, {paths[0]} is "
            f"read with {others[0] if others else 'none'}, and nothing is left to be read with {few(alone)}. Leave out "
            "files that have none beside them."
        )
    return ZippedFiles(list(zip(paths, others, strict=True)))
