"""Every error that ray_h5 raises on purpose.

Each leaf is a `RayH5Error` and also the builtin that a Python programmer would expect in its
place, so that ``except FileNotFoundError`` and ``except RayH5Error`` both work. A leaf takes one
message and nothing else: that is what keeps it whole on its way out of a Ray task.
"""

__all__ = [
    "CodecUnavailableError",
    "ConstantColumnError",
    "CorruptChunkError",
    "CorruptFileError",
    "ExternalDataError",
    "MaskTooLargeError",
    "MissingDependencyError",
    "MissingRowKeyError",
    "MissingSourceError",
    "NonFiniteError",
    "NotFittedError",
    "NotFoundError",
    "NotHDF5Error",
    "NotReadableError",
    "OptionError",
    "OutOfMemoryError",
    "PositionError",
    "PredicateError",
    "RayH5Error",
    "ReadFailedError",
    "RowIndexError",
    "SchemaMismatchError",
    "StaleIndexError",
    "TransientIOError",
    "TruncatedFileError",
    "UnknownColumnError",
    "UnknownOptionError",
    "UnsupportedColumnError",
    "WriterActiveError",
]


def printable(text: str) -> str:
    """Return `text` without what a terminal would take for a command, and what cannot be written as UTF-8."""
    return text if text.isprintable() else "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


class RayH5Error(Exception):
    """Base of all errors of this package.

    Messages hold names that come from files. What a terminal would take for a command is escaped in them; they may
    have several lines.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(
            *("\n".join(map(printable, each.split("\n"))) if isinstance(each, str) else each for each in args)
        )


class OptionError(RayH5Error, ValueError):
    """An argument has a value that cannot be used."""


class UnknownOptionError(OptionError, TypeError):
    """An argument has a name that is not among those there are."""


class NotFoundError(RayH5Error, FileNotFoundError):
    """One or more paths do not exist; the message lists all of them."""


class NotReadableError(RayH5Error, PermissionError):
    """A path exists, but this process may not read it."""


class NotHDF5Error(RayH5Error, OSError):
    """A file is not HDF5, or is empty."""


class ReadFailedError(RayH5Error, OSError):
    """The operating system cannot read a file, for a reason that will not pass by itself."""


class TruncatedFileError(RayH5Error, OSError):
    """A file is shorter than it says, or than it was."""


class CorruptFileError(RayH5Error, OSError):
    """The metadata of a file is damaged: superblock, object header or chunk index."""


class CorruptChunkError(RayH5Error, OSError):
    """One chunk does not decode to what its column declares."""


class WriterActiveError(RayH5Error, BlockingIOError):
    """A file is open for writing elsewhere, or its writer died without closing it."""


class TransientIOError(RayH5Error, OSError):
    """Reading failed with an error that usually passes, and did not pass within the retries."""


class StaleIndexError(RayH5Error, RuntimeError):
    """A file changed between planning and reading."""


class SchemaMismatchError(RayH5Error, ValueError):
    """Files or columns that must agree do not."""


class UnknownColumnError(SchemaMismatchError, KeyError):
    """A column that was asked for is in no file."""

    # KeyError prints the repr of its argument, which turns a message of several lines into one.
    __str__ = Exception.__str__


class UnsupportedColumnError(RayH5Error, TypeError):
    """A column exists, but its type or shape cannot be read as rows."""

    has_rows = True
    """False for what describes the rows of others: a single value, nothing, or references."""


class CodecUnavailableError(RayH5Error, ImportError):
    """No installed library decodes a filter of a column's filter pipeline."""


class ExternalDataError(RayH5Error, PermissionError):
    """A link, virtual dataset or external storage leads outside ``allow_external``."""


class MissingSourceError(RayH5Error, FileNotFoundError):
    """A link, virtual dataset or external storage leads to something that is not there."""


class PositionError(RayH5Error, ValueError):
    """A position in an epoch is of other data, or of another order."""


class PredicateError(RayH5Error, ValueError):
    """A predicate cannot be evaluated on the columns that it names."""


class RowIndexError(RayH5Error, IndexError):
    """A row number lies outside the file."""


class OutOfMemoryError(RayH5Error, MemoryError):
    """Rows take more memory than this process can have."""


class ConstantColumnError(RayH5Error, ValueError):
    """A column, or a part of it that is scaled by itself, has one value only, so its deviation is 0."""


class MaskTooLargeError(RayH5Error, ValueError):
    """A mask may be wider than the axis that it lies on."""


class MissingDependencyError(RayH5Error, ImportError):
    """A library that belongs to an extra of this package is not installed."""


class MissingRowKeyError(RayH5Error, KeyError):
    """A batch lacks the keys that its augmentation is made from."""

    __str__ = Exception.__str__


class NonFiniteError(RayH5Error, ValueError):
    """Values are NaN or infinite where they must be finite."""


class NotFittedError(RayH5Error, RuntimeError):
    """Something must be fitted before it is used."""
