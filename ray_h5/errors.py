"""Every error that ray_h5 raises on purpose.

Each leaf is also the builtin error that a Python programmer expects, such as `FileNotFoundError`. A message alone makes
one, so that it can be pickled: Ray sends it from a task to the driver.
"""

# Under private names: `from ray_h5.errors import *` gives the errors alone.
from typing import Any as _Any

from ray_h5.messages import printable as _printable


class RayH5Error(Exception):
    """Base of all errors of this package. Messages may have several lines; what a terminal would obey is escaped."""

    def __init__(self, *args: object) -> None:
        super().__init__(*("\n".join(map(_printable, x.split("\n"))) if isinstance(x, str) else x for x in args))

    # KeyError prints the repr of its argument: a message of several lines would become one.
    __str__ = Exception.__str__


class OptionError(RayH5Error, ValueError):
    """An argument has a value that cannot be used; `option`, `value` and `reason` are the parts of the message."""

    def __init__(self, message: object = "", *, option: str = "", value: object = None) -> None:
        super().__init__(f"{option}={value!r}: {message}" if option else message)
        self.option, self.reason = option, str(message)
        # Anything may be passed as an option, and Ray pickles errors.
        self.value = value if isinstance(value, (str, int, float)) else repr(value)


class UnknownOptionError(OptionError, TypeError):
    """An argument has an unknown name, or a type that cannot be used, or is missing."""


class NotFoundError(RayH5Error, FileNotFoundError):
    """One or more paths do not exist; the message lists all of them."""


class NotReadableError(RayH5Error, PermissionError):
    """A path exists, but this process has no permission to read it."""


class NotHDF5Error(RayH5Error, OSError):
    """A file is not HDF5, or is empty."""


class ReadFailedError(RayH5Error, OSError):
    """The operating system cannot read a file, and to try again does not help."""


class TruncatedFileError(RayH5Error, OSError):
    """A file is shorter than its header says, or than it was."""


class CorruptFileError(RayH5Error, OSError):
    """The metadata of a file is damaged: superblock, object header or chunk index."""


class CorruptChunkError(RayH5Error, OSError):
    """A chunk does not decode to the size and type that its column declares."""


class WriterActiveError(RayH5Error, BlockingIOError):
    """A file is open for writing elsewhere, or its writer died without closing it."""


class TransientIOError(RayH5Error, OSError):
    """Reading failed with an error that usually is temporary, and all retries failed too."""


class StaleIndexError(RayH5Error, RuntimeError):
    """A file changed between planning and reading."""


class SchemaMismatchError(RayH5Error, ValueError):
    """Files or columns that must agree do not."""

    suggestions: tuple[_Any, ...] = ()
    """What rows probably are, for whoever knows all files."""


class UnknownColumnError(SchemaMismatchError, KeyError):
    """No file has a column that was asked for."""


class MissingGroupError(UnknownColumnError):
    """A file has no group of the name that ``group=`` says, or none that a pattern of Groups matches."""


class UnsupportedColumnError(RayH5Error, TypeError):
    """A column exists, but its type or shape cannot be read as rows."""

    has_rows: bool | None = True
    """False for empty datasets and references, which are no columns of rows; None for single values."""

    is_encoded = False
    """True for a group that encodes a column, such as a sparse matrix."""


class CodecUnavailableError(RayH5Error, ImportError):
    """No installed library decodes a filter of a column's filter pipeline."""


class ExternalDataError(RayH5Error, PermissionError):
    """A link, virtual dataset or external storage leads outside ``allow_external``."""


class MissingSourceError(RayH5Error, FileNotFoundError):
    """A link, virtual dataset or external storage leads to something that does not exist."""

    is_dangling = False
    """True for a link. The other columns of its file are read without it."""


class ImageError(RayH5Error, ValueError):
    """An encoded image cannot be decoded."""


class TableError(RayH5Error, ValueError):
    """A table beside the files cannot be read as CSV or Parquet."""


class CastError(RayH5Error, ValueError):
    """A value cannot be cast to the dtype that was asked for: it would become another one."""


class PositionError(RayH5Error, ValueError):
    """A position in an epoch belongs to other data, or to another order."""


class PredicateError(RayH5Error, ValueError):
    """A predicate cannot be evaluated on the columns that it names."""


class RowIndexError(RayH5Error, IndexError):
    """A row number is outside the file."""


class OutOfMemoryError(RayH5Error, MemoryError):
    """Rows need more memory than this process can get."""


class ConstantColumnError(RayH5Error, ValueError):
    """A column, or an element that is scaled separately, has one value only: its deviation is 0."""


class MaskTooLargeError(RayH5Error, ValueError):
    """A mask may be wider than its axis."""


class MissingDependencyError(RayH5Error, ImportError):
    """A library that belongs to an extra of this package is not installed."""


class MissingRowKeyError(RayH5Error, KeyError):
    """A batch lacks the row keys that seed its augmentation."""


class NonFiniteError(RayH5Error, ValueError):
    """Values are NaN or infinite where they must be finite."""


class NotFittedError(RayH5Error, RuntimeError):
    """Something must be fitted before it is used."""


class NullValueError(RayH5Error, ValueError):
    """A value that is missing is to be written, and nothing says what to write instead."""


class OutputExistsError(RayH5Error, FileExistsError):
    """A file or folder that is to be written exists already."""


class WriteFailedError(RayH5Error, OSError):
    """The operating system or a store cannot write a file, such as on a full disk."""


class VerifyError(RayH5Error, OSError):
    """A file that was written does not hold what was to be written."""
