"""`RowReader` with rows of every kind; for rows along the first axis it is the reader of a file alone."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from glob import has_magic
from typing import Any

from ray_h5.errors import NotFoundError
from ray_h5.manifest.file_manifest import Manifest
from ray_h5.manifest.file_state import FileState
from ray_h5.options import as_integer, names_options, require
from ray_h5.read.arguments import as_access, as_state
from ray_h5.read.reader import FileReader
from ray_h5.rows.frames_option import with_episodes
from ray_h5.rows.row_kind_options import RowKind, as_kind
from ray_h5.rows.row_view import RowView
from ray_h5.rows.windows_option import Windows, as_windows
from ray_h5.storage.byte_source import Identity
from ray_h5.storage.storage_of_path import Storage


class RowReader(FileReader):
    """Reads rows of the columns of one HDF5 file.

    Each chunk that contains a requested row is fetched and decoded once a call, straight into the
    result if the layout allows it. This needs neither the interpreter's lock nor that of libhdf5,
    so readers in several threads do not wait for each other.

    Open files and chunk indexes stay in a cache of the process, so a second reader of the same file
    costs almost nothing. A reader can be pickled and used after a fork; it opens its file again in
    the other process.

    Parameters
    ----------
    path : str, bytes or path-like
        The file: a path, or a URL such as ``s3://bucket/run.h5``.
    group : str
        The group whose datasets are the columns.
    threads : int
        Threads that one `read` may use.
    allow_external : iterable of str
        Folders that links, virtual datasets and external storage may lead into; of a file in a store, URLs of the same
        store. By default they may lead only to the file itself.
    rows : Groups, Grid, Files or Patches, optional
        What a row is, as in `read_h5`; by default an index of the first axis.
    windows : Windows, optional
        Windows over these rows.
    expect : Identity or FileState, optional
        The state that the file must have. A FileState also has the states of the other files that
        columns come from.
    swmr : bool
        Read a file while a writer in SWMR mode adds rows to it, or after such a writer died. The
        reader has the rows that were flushed when it opened the file; later ones need another
        reader. Size and times then change all the time, so `expect` compares the inode alone.
    storage_options : mapping, optional
        How the store of a remote file is reached, as in `read_h5`.
    known : Manifest, optional
        What is known of a remote file, from `manifest`.
    zip_file : str
        A file of the same rows, whose columns join those of this one.

    Raises
    ------
    RayH5Error
        If the file cannot be opened; the leaf says why.

    Examples
    --------
    >>> with RowReader("run.h5") as reader:  # doctest: +SKIP
    ...     batch = reader.read(["signal", "label"], [7, 3, 3])
    >>> batch["signal"].shape  # doctest: +SKIP
    (3, 43, 300)
    """

    def __new__(cls, *args: Any, rows: RowKind | None = None, windows: Windows | None = None, **options: Any) -> Any:
        """Return a reader of the file, or of its rows of a kind."""
        path = args[0] if args else options.get("path")
        if isinstance(path, str) and has_magic(path) and "://" not in path and not os.path.exists(path):
            raise NotFoundError(
                f"{path}: no such file. A RowReader reads one file; H5Dataset({path!r}) and loader({path!r}, 64) read "
                "all that match."
            )
        if rows is None and windows is None:
            return super().__new__(cls)
        kind, over = with_episodes(as_kind(rows), as_windows(windows))
        return RowView(cls(*args, **options), kind, over)

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        group: str = "/",
        threads: int = 1,
        allow_external: Iterable[str | os.PathLike[str]] = (),
        *,
        rows: RowKind | None = None,
        windows: Windows | None = None,
        expect: Identity | FileState | None = None,
        swmr: bool = False,
        storage_options: Mapping[str, Any] | Storage | None = None,
        known: Manifest | None = None,
        zip_file: str = "",
    ) -> None:
        del rows, windows  # `__new__` has them
        access = as_access(path, group, allow_external, swmr, storage_options, zip_file)
        require(known is None or isinstance(known, Manifest), "known", known, "what `manifest` of a reader returned")
        super().__init__(access, as_integer("threads", threads, 1), expect=as_state(expect), known=known)


_PARAMETERS = [*inspect.signature(RowReader.__init__).parameters.values()]
RowReader.__signature__ = inspect.Signature(_PARAMETERS[1:])  # type: ignore[attr-defined]
names_options(RowReader)
