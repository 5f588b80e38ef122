"""What a user says about files, once: which they are, how they are opened, and what their rows and columns are.

Each function and class that reads files takes these options as ``**options``; `takes_options_of` lists them in its
signature and its docstring. Importing this module is cheap: the command line asks it for its flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ray_h5.errors import OptionError
from ray_h5.options import DEFAULT_EXTENSIONS, require

if TYPE_CHECKING:
    import numpy.typing as npt

    from ray_h5.columns.derived_columns import Columns, MadeColumn
    from ray_h5.columns.labels import Classes, LabelsLike
    from ray_h5.columns.schema import Cast
    from ray_h5.read.casting import Casting
    from ray_h5.rows.row_kind_options import RowKind
    from ray_h5.rows.windows_option import Windows
    from ray_h5.storage.local import PathLike
    from ray_h5.tables.sidecar import Sidecar


@dataclass(frozen=True, repr=False)  # storage_options may hold credentials
class Source:
    """What a user says about files; the options are checked, and no file is looked at.

    Parameters
    ----------
    paths : str, path-like, or a sequence of them
        Files, directories (with their subdirectories) and globs. The files are sorted naturally (``f2`` before
        ``f10``), without duplicates. ``local://`` before a path means that only this node has the file. Files in
        stores have URLs: ``s3://``, ``gs://``, ``az://``, ``hf://`` and ``https://``.
    zip_files : str, path-like, or a sequence of them, optional
        As many files with the same rows, whose columns join those of `paths`: the first of each, sorted, are read
        together, and so on. ``read_h5("x_*.h5", zip_files="y_*.h5")`` has the columns of both. With `Groups`, the
        groups of one name are one row, whatever their order.
    columns : sequence of str, or of what csr, ragged, fields and part return, or a mapping of such, optional
        Names, such as ``"signal"`` or ``"obs/image"``, ``"jets/pt"`` for a field of compound values, and ``"emb_*"``
        for all columns of the first file that match; and columns that say how they are made: `ray_h5.csr`,
        `ray_h5.ragged`, `ray_h5.fields`, `ray_h5.part`. A mapping gives them names, and one dataset may be several
        columns: ``{"first": part("x", {0: [0]}), "all": "x"}``. By default all columns.
    group : str
        The HDF5 group that names are relative to.
    rows : Groups, Grid, Files or Patches, optional
        What a row is: `ray_h5.Groups` for an HDF5 group a row, `ray_h5.Grid` for several leading axes, `ray_h5.Files`
        for a file a row, `ray_h5.Patches` for blocks of arrays. By default an index of the first axis.
    windows : Windows, optional
        A row is a step of an episode, with the values at some offsets from it; see `ray_h5.Windows`.
    sidecar : Sidecar, or sequence of them, optional
        Tables in CSV, Parquet or HDF5 beside the files, whose columns join the rows; see `ray_h5.Sidecar`.
    attrs : sequence of str, or mapping of str to str, optional
        Attributes of each file, or of `group` in it, that are columns: each holds one number or one text. A mapping
        gives the attribute of each column: ``{"rate": "fs"}`` is a column ``rate`` of the attribute ``fs``. Attributes
        of groups that are rows: ``Groups(..., attrs=...)``.
    decode_cf : bool
        Apply the attributes that netCDF files have by the CF conventions: ``_FillValue`` and ``missing_value`` become
        NaN, ``scale_factor`` and ``add_offset`` are applied, times since a date become timestamps, and the last axis
        of an array of characters becomes a text.
    axes : {"stored", "reversed"}
        ``"reversed"`` takes the last axis for the row axis, and reverses the others too, as MATLAB and loom mean them.
    labels : mapping of str to (str, sequence, or mapping), optional
        Columns of text, categories or integers that are delivered as the numbers of classes, int64, for losses:
        ``{"obs/cell_type": ["B", "T"]}`` numbers the classes from 0 on, ``"auto"`` takes those of all files, sorted,
        and ``{"B": 0, "T": 1, None: -1}`` gives each a number, and -1 to all other values and to missing ones, which
        are errors without it. Rows of several values, such as those of `ragged` and `Groups`, have a number for each.
        Predicates and `balance` still compare the values themselves.
    dtypes : mapping of str to dtype, optional
        Dtypes that columns are cast to while reading: ``{"image": "float16"}`` halves the bytes that travel. Files may
        differ in the dtypes of such columns. ``bytes`` for a column of strings delivers them undecoded. A float for one
        whose values may be missing delivers NaN for these. ``"bfloat16"`` says that a column of uint16 holds the bits
        of bfloat16: tensors are ``torch.bfloat16``, and NumPy, Arrow and predicates see the bits. It casts nothing.
    casting : {"checked", "unsafe"}
        Whether a value that its new dtype cannot hold is an error: 300 or NaN for int8, 1.5 for an integer. A float may
        be rounded to another float, but not to infinity. ``"unsafe"`` casts all values as numpy's ``astype`` does.
    index_dir : path-like, optional
        A folder that stores the row index of the files for later runs. For files in a store, it may be a folder of
        the store, which is only read.
    allow_external : path-like, or sequence of them
        Folders that external links, virtual datasets and external storage may lead into; of files in a store, URLs of
        the same store. Those that lead elsewhere are refused.
    filesystem : pyarrow or fsspec file system, optional
        A local file system, or a subtree of one that relative paths start from; or a remote one, which is slower
        than a URL: its calls run in threads, and the state of a file is asked for before and after each read.
    storage_options : mapping of str to object, optional
        How stores are reached, by the names that obstore has for them: ``region``, ``endpoint``, ``skip_signature``,
        ``access_key_id``, ``timeout`` ... Without credentials here, those of the environment of each node are used.
        ``allow_unversioned=True`` reads files for which a server gives no ETag.
    cache_dir : path-like, optional
        A folder on a disk of each node, where bytes of files in stores stay: a second epoch makes no requests for what
        is there. Processes and runs share it.
    cache_bytes : int or str, optional
        How much of that disk to take, such as ``"200GB"``.
    file_extensions : sequence of str, optional
        Extensions of the files to take from directories and globs; None takes all. By default ``h5``, ``hdf5`` and
        ``h5ad``, and all matches of a glob that has an extension of its own, such as ``*.nc``.
    missing : {"error", "null"}
        What happens if files have different columns: an error, or None in all rows of a file that lacks one, where
        rows lie along the first axis or are groups or files. ``dtypes={"label": "float32"}`` makes it NaN.
    ignore_missing_paths : bool
        Leave out paths that do not exist, and datasets of `ray_h5.joined` in such files. If none exists, it is an
        error.
    ignore_unreadable_files : bool
        Leave out files that are not HDF5, cut short or damaged, or that lack `group` or what a pattern of `Groups`
        matches, and list them in a warning. By default, an error names all of them. If none can be read, it is an
        error.

    Attributes
    ----------
    names : list of str, optional
        The names of `columns`; None stands for all.
    made : tuple of MadeColumn
        Those of `columns` that are made of several datasets.
    tables : tuple of Sidecar
        The tables of `sidecar`.
    attributes : mapping of str to str
        `attrs`, by column.
    cast : Cast
        What `dtypes` and `casting` stand for.
    classes : tuple of Classes
        What `labels` stands for.

    Raises
    ------
    OptionError
        If an option has a value that cannot be used.
    """

    paths: PathLike | Sequence[PathLike]
    _: KW_ONLY
    zip_files: PathLike | Sequence[PathLike] | None = None
    columns: Columns | None = None
    group: str = "/"
    rows: RowKind | None = None
    windows: Windows | None = None
    sidecar: Sidecar | Sequence[Sidecar] | None = None
    attrs: Sequence[str] | Mapping[str, str] = ()
    decode_cf: bool = False
    axes: Literal["stored", "reversed"] = "stored"
    labels: Mapping[str, LabelsLike] | None = None
    dtypes: Mapping[str, npt.DTypeLike] | None = None
    casting: Casting = "checked"
    index_dir: PathLike | None = None
    allow_external: PathLike | Sequence[PathLike] = ()
    filesystem: object = None
    storage_options: Mapping[str, object] | None = None
    cache_dir: PathLike | None = None
    cache_bytes: int | str | None = None
    file_extensions: Sequence[str] | None = DEFAULT_EXTENSIONS
    ignore_missing_paths: bool = False
    ignore_unreadable_files: bool = False
    missing: Literal["error", "null"] = "error"

    names: list[str] | None = field(init=False)
    made: tuple[MadeColumn, ...] = field(init=False)
    tables: tuple[Sidecar, ...] = field(init=False)
    attributes: Mapping[str, str] = field(init=False)
    cast: Cast = field(init=False)
    classes: tuple[Classes, ...] = field(init=False)

    def __post_init__(self) -> None:
        from ray_h5.columns.schema import Cast
        from ray_h5.read.casting import as_casting
        from ray_h5.storage.find_files import list_paths

        require(isinstance(self.group, str), "group", self.group, "the name of a group; '/' is the whole file")
        require(self.missing in ("error", "null"), "missing", self.missing, "'error' or 'null'")
        if self.dtypes is not None and not isinstance(self.dtypes, Mapping):
            raise OptionError(f"dtypes={self.dtypes!r}: expected {{column: dtype}}, such as {{'image': 'float16'}}")
        derived = {
            "paths": list_paths(self.paths),  # it may be an iterator
            "zip_files": None if self.zip_files is None else list_paths(self.zip_files, "zip_files"),
            "names": None,
            "made": (),
            "tables": (),
            "attributes": {},
            "cast": Cast(dict(self.dtypes or {}), as_casting(self.casting)),
            "classes": (),
            "storage_options": self._with_cache(),
        }
        derived |= self._of_kinds()
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        # An option that names the dataset of a column that `columns` calls otherwise would do nothing.
        called = {column.dataset: column.name for column in self.made if column.name != column.dataset}
        known = set(self.names or ())
        for option, names in (("dtypes", self.cast.dtypes), ("labels", [label.name for label in self.classes])):
            if wrong := next((name for name in names if name in called and name not in known), None):
                said = f"{option}: {wrong!r} is a dataset, whose column is {called[wrong]!r} in columns="
                raise OptionError(f"{said}; write {called[wrong]!r}")
        if twice := [label.name for label in self.classes if label.name in self.cast.dtypes]:
            raise OptionError(
                f"labels, dtypes: {twice[0]!r} is in both; numbers of classes are int64: leave it out of dtypes"
            )

    def _of_kinds(self) -> dict[str, Any]:
        """Return what is derived from options that plain files do not need; their modules are imported on use."""
        derived: dict[str, Any] = {}
        if self.labels is not None:
            from ray_h5.columns.labels import as_labels

            derived["classes"] = as_labels(self.labels)
        if self.rows is not None:
            from ray_h5.rows.row_kind_options import as_kind

            as_kind(self.rows)
        if self.windows is not None:
            from ray_h5.rows.windows_option import as_windows

            as_windows(self.windows)
        if self.columns is not None:
            from ray_h5.columns.derived_columns import split_columns

            derived["names"], derived["made"] = split_columns(self.columns)
        if self.sidecar is not None or self.attrs != ():
            from ray_h5.tables.sidecar import as_attrs, as_sidecars

            derived["tables"], derived["attributes"] = as_sidecars(self.sidecar), as_attrs(self.attrs)
        return derived

    def _with_cache(self) -> Any:
        """Return `storage_options` with the cache that is given beside them."""
        options = self.storage_options
        cache_options = {"cache_dir": self.cache_dir, "cache_bytes": self.cache_bytes}
        cache_options = {name: value for name, value in cache_options.items() if value is not None}
        if not cache_options or not isinstance(options, (Mapping, type(None))):
            return options
        if twice := [name for name in cache_options if name in (options or {})]:
            raise OptionError(f"{', '.join(twice)}: in storage_options, too; expected it once")
        return {**(options or {}), **cache_options}


# The options again, as type checkers know keyword arguments. mypy compares them with those of `Source`.


class _Options(TypedDict, total=False):
    zip_files: PathLike | Sequence[PathLike] | None
    rows: RowKind | None
    windows: Windows | None
    sidecar: Sidecar | Sequence[Sidecar] | None
    attrs: Sequence[str] | Mapping[str, str]
    decode_cf: bool
    axes: Literal["stored", "reversed"]
    labels: Mapping[str, LabelsLike] | None
    dtypes: Mapping[str, npt.DTypeLike] | None
    casting: Casting
    index_dir: PathLike | None
    allow_external: PathLike | Sequence[PathLike]
    filesystem: object
    storage_options: Mapping[str, object] | None
    cache_dir: PathLike | None
    cache_bytes: int | str | None
    file_extensions: Sequence[str] | None
    ignore_missing_paths: bool
    ignore_unreadable_files: bool
    missing: Literal["error", "null"]


class OptionsOfFolds(_Options, total=False):
    """The options of `Source` except `group`, which is a column of `kfold`."""

    columns: Columns | None


class OptionsButColumns(_Options, total=False):
    """The options of `Source` except `columns`, for what takes these by position."""

    group: str


class SourceOptions(OptionsButColumns, total=False):
    """The options of `Source`."""

    columns: Columns | None
