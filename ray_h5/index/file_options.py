"""Options that say which files are read and how they are opened."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.compute as pc

from ray_h5.columns.column_functions import csr, joined, part, ragged
from ray_h5.columns.derived_columns import Columns, Csr, Ragged, is_of_pattern, of_each_match, split_columns
from ray_h5.columns.file_columns import is_of_single_value
from ray_h5.columns.labels import Classes, Value, classes_of, levels_of
from ray_h5.columns.schema import Cast
from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnknownColumnError
from ray_h5.globs import is_glob, texts_of
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.row_index import RowIndex, build_index, find_cast
from ray_h5.index.scan_files import UNREADABLE, Lookup, Spread, read_ahead
from ray_h5.index.stored.index_files import check_index_dir
from ray_h5.likely_rows.arguments import value_of
from ray_h5.likely_rows.suggestions import Suggestion
from ray_h5.lru import first_time
from ray_h5.manifest.file_state import FileState
from ray_h5.messages import ensure_handler, few, near_names, no_column
from ray_h5.predicates.virtual_names import FirstSeen, virtual_name
from ray_h5.rows.frames_option import Frames
from ray_h5.rows.patches_option import Patches
from ray_h5.rows.row_kind_options import Files, Grid, Groups, RowKind, naming_files
from ray_h5.rows.windows_option import Windows
from ray_h5.scope import Scope
from ray_h5.source import Source, SourceOptions
from ray_h5.storage.byte_source import ObjectIdentity
from ray_h5.storage.find_files import PathLike, find_files, is_local_only, list_paths
from ray_h5.storage.hub import on_hub
from ray_h5.storage.local import LOCAL
from ray_h5.storage.storage_of_path import Storage, storage_for
from ray_h5.tables.sidecar import Sidecar

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ray_h5.index.files_beside import FilesBeside


logger = logging.getLogger(__name__)

_MAX_ADVICE = 3
_KEPT = ("group", "allow_external", "ignore_unreadable_files", "axes")
"""The options of the user with which a suggestion is tried, unless it says others."""

_MAX_ROW_BYTES = 64 << 20
"""A column with larger rows is planned and not read."""

_MAKERS: Mapping[str, Callable[..., Any]] = {
    maker.__name__: maker for maker in (Files, Grid, Groups, Patches, Sidecar, Windows, csr, joined, part, ragged)
}


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The files of a `Source` as they were found, how they are opened, and the casts of their columns.

    Attributes
    ----------
    source : Source
        What the user says.
    paths : list of str
        The files, in the order of row ids.
    scope : Scope
        How they are opened.
    index_dir : str, optional
        The folder of their index files.
    cast : Cast
        The casts while columns are read.
    local_only : bool
        Whether only this node has the files.
    states : mapping of str to ObjectIdentity
        The states of remote files, by URL.
    """

    source: Source = field(repr=False)
    paths: Sequence[str]
    scope: Scope
    index_dir: str | None
    cast: Cast
    local_only: bool
    states: Mapping[str, ObjectIdentity] = field(default_factory=dict)

    @classmethod
    def of(
        cls, paths: PathLike | Sequence[PathLike], *, threads: int = 1, **options: Unpack[SourceOptions]
    ) -> FileOptions:
        """Find the files of a `Source`, which each task opens with some threads.

        Raises
        ------
        NotFoundError, NotReadableError, OptionError
            If there are no such files, or an argument has a value that cannot be used.
        """
        ensure_handler()
        source = Source(paths, **options)
        named, beside, filesystem, storage = _places(source)
        scope = Scope.of(source, storage, threads)
        folder = None
        if source.index_dir is not None:  # it may be in a store, unless another library reads that
            in_store = storage is not LOCAL and (source.filesystem is None or filesystem is not None)
            folder = check_index_dir(source.index_dir, in_store=in_store)
        how = source.file_extensions, source.ignore_missing_paths, filesystem, storage
        files = find_files(named, *how)
        if beside:
            scope = replace(scope, zipped=_zipped(files.paths, find_files(beside, *how).paths))
        rows, local_only = scope.rows, is_local_only([*named, *beside])

        def of(kind: RowKind | None) -> FileOptions:
            its = replace(scope, rows=kind)
            return cls(source, files.paths, its, folder, source.cast, local_only, files.states)

        if not isinstance(rows, Frames):
            return of(None if rows is None else naming_files(rows, files.paths))
        if rows.column is not None:
            alone = of(naming_files(rows.files, files.paths))
            rows = replace(rows, episodes=_episodes_of_files(alone, rows.column))
        return of(rows.of_files(files.paths))

    def _matching(self, names: Sequence[str] | None) -> tuple[list[str] | None, Scope]:
        """Return names of columns, with those of the first file that match in the place of each pattern.

        The scope has a column that says how it is made for each match of its pattern.

        Raises
        ------
        UnknownColumnError
            If a pattern matches none.
        """
        made = [column for column in self.scope.columns if is_of_pattern(column)]
        if names is None or not (made or any(map(is_glob, names))) or not self.paths:
            return None if names is None else list(names), self.scope
        # `plan` reports files that cannot be read, or leaves them out.
        for path in self.paths:
            state = FileState(self.states[path]) if path in self.states else None
            with contextlib.suppress(*UNREADABLE), self.scope.open(path, state) as reader:
                layout = reader.layout
                break
        else:
            return list(names), self.scope
        known = [*layout.columns, *layout.refused]
        matrices = [*known, *(name.removesuffix("/indptr") for name in known if name.endswith("/indptr"))]
        of = {column.name: of_each_match(column, matrices if isinstance(column, Csr) else known) for column in made}
        chosen: dict[str, None] = {}
        for name in names:
            matching = [column.name for column in of.get(name, ())]
            if name not in of:
                is_name = not is_glob(name) or name in known
                matching = [name] if is_name else [column for column in known if texts_of(column, name) is not None]
            if not matching:
                others = " Patterns are of columns of the files: name those of tables and attributes one by one."
                hint = others if self.source.tables or self.source.attributes else ""
                raise UnknownColumnError(f"{path}: no column matches {name!r}.{near_names(name, known)}{hint}")
            chosen.update(dict.fromkeys(matching))
        columns = [each for column in self.scope.columns for each in of.get(column.name, [column])]
        return list(chosen), replace(self.scope, columns=split_columns(columns)[1])

    def that_run(self, suggestions: Iterable[Suggestion], paths: Sequence[str]) -> Iterator[Suggestion]:
        """Yield the suggestions whose call reads some of the files, and those without a call.

        The files are planned as each of them says, and the first and the last row is read. Of several calls for the
        same that was found, the first one that runs is yielded.
        """
        chosen, said = [*dict.fromkeys(paths)], set[tuple[str, str]]()
        for suggestion in suggestions:
            key = suggestion.found, suggestion.when
            if suggestion.arguments and key in said:
                continue
            if not suggestion.arguments or self._runs(suggestion, chosen):
                said.add(key)
                yield suggestion
                continue
            # Single values are no columns, which a guess is made from; a pattern may match their groups all the same.
            narrower = suggestion.beside_others(self._single_values(chosen[0])) if suggestion.samples else None
            if narrower is not None and (not narrower.arguments or self._runs(narrower, chosen)):
                yield narrower

    def _runs(self, suggestion: Suggestion, paths: Sequence[str]) -> bool:
        """Return whether the call of a suggestion reads these files."""
        kept = {name: getattr(self.source, name) for name in _KEPT}
        try:
            arguments = {name: value_of(value, _MAKERS) for name, value in suggestion.arguments.items()}
            source = Source(paths, **{**kept, **arguments})
            scope = replace(Scope.of(source, self.scope.storage), zipped=self.scope.zipped)
            tried = replace(self, source=source, paths=paths, scope=scope, index_dir=None, cast=source.cast)
            _read_ends(tried.plan())
        except RayH5Error as exc:
            logger.debug("not suggested: %s: %s", suggestion.options, exc)
            return False
        return True

    def _single_values(self, path: str) -> list[str]:
        """Return the datasets of a file that are single values, and so no columns; none of one that cannot be read."""
        state = FileState(self.states[path]) if path in self.states else None
        with contextlib.suppress(RayH5Error), self.scope.open(path, state) as reader:
            refused = reader.base.layout.refused.items()
            return [name for name, error in refused if is_of_single_value(error)]
        return []

    def index(self, columns: Columns | None = None, spread: Spread = read_ahead) -> RowIndex:
        """Return the index of some columns; by default of those that the source names, or of all.

        `spread` does the work, unless only this node has the files. Errors of columns that make no rows say which calls
        read the files.
        """
        try:
            return self.plan(columns, spread)
        except SchemaMismatchError as exc:
            if not exc.suggestions:
                raise
            # The error is of one file. To try the calls on all of many would take as long as to read them.
            runnable = [*self.that_run(exc.suggestions, [self.paths[0], self.paths[-1]])]
            advice = [suggestion.as_advice for suggestion in [*runnable[:-1][:_MAX_ADVICE], *runnable[-1:]]]
            if self.scope.zipped and self.scope.by_axis:
                other = repr(os.fspath(list_paths(self.source.zip_files, "zip_files")[0]))
                advice.append(
                    "Rows that are not beside each other join by an id or row numbers, without zip_files=: "
                    f"sidecar=Sidecar({other}, on='id'), or Sidecar({other}, on='index', key='row_id')."
                )
            raise SchemaMismatchError("\n".join([str(exc), *advice])) from None

    def plan(self, columns: Columns | None = None, spread: Spread = read_ahead) -> RowIndex:
        """Return what `index` does; its errors have suggestions that were not run."""
        source = self.source
        names, scope = self._matching(source.names if columns is None else split_columns(columns)[0])
        scope = scope.naming(names if source.names is None else source.names)
        spread, leaves_out = read_ahead if self.local_only else spread, bool(source.ignore_unreadable_files)
        lookup = Lookup(scope, self.index_dir, spread, self.states, leaves_out)
        index = self._built(self.paths, names, lookup)
        if isinstance(scope.rows, Frames) and len(index.files) < len(self.paths):  # windows are of the others
            kept = index.files.all_paths()
            lookup = replace(lookup, scope=replace(scope, rows=scope.rows.of_files(kept)))
            index = self._built(kept, names, lookup)
        find_cast(index, [*self.cast.dtypes])
        if scope.zipped and source.zip_files is not None:
            from ray_h5.index.zipped_ids import check_ids  # few files are zipped

            listed = [os.fspath(path) for path in list_paths(source.zip_files)]
            check_ids(index, repr(listed[0] if len(listed) == 1 else listed))
        return _with_labels(index, source.classes, of_some=columns is not None)

    def _built(self, paths: Sequence[str], names: Sequence[str] | None, lookup: Lookup) -> RowIndex:
        """Return the index of files, with the tables beside them."""
        tables, attributes = self.source.tables, self.source.attributes
        if not (tables or attributes):
            return build_index(paths, names, lookup, self.cast)
        from ray_h5.index.tables_beside import index_with_tables  # readers of tables take long to import

        return index_with_tables(paths, names, lookup, self.cast, tables, attributes)


def _places(source: Source) -> tuple[Sequence[PathLike], Sequence[PathLike], Any, Storage]:
    """Return the paths of a `Source` and those beside them, as their storage takes them, and where they are.

    That is a local file system that they start in, if any, and the storage of files with a URL.
    """
    paths, beside = list_paths(source.paths), [] if source.zip_files is None else list_paths(source.zip_files)
    if source.filesystem is not None:
        from ray_h5.storage.stores.file_systems import FileSystemStorage, remote_filesystem

        if (remote := remote_filesystem(source.filesystem)) is not None:
            storage = storage_for(source.storage_options, [], remote)
            assert isinstance(storage, FileSystemStorage)
            urls, others = ([storage.url(os.fspath(path)) for path in listed] for listed in (paths, beside))
            return urls, others, None, storage
    else:
        paths, beside = ([on_hub(path, listed=True) for path in listed] for listed in (paths, beside))
    tables = [on_hub(path, listed=True) for table in source.tables for path in table.paths]
    texts = [text for path in (*paths, *beside, *tables) if isinstance(text := os.fspath(path), str)]
    return paths, beside, source.filesystem, storage_for(source.storage_options, texts)


def _zipped(paths: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """Return for each file the one that is read beside it.

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
    return dict(zip(paths, others, strict=True))


def _episodes_of_files(files: FileOptions, name: str) -> dict[str, Any]:
    """Return the episode of each file: the value of a column. Rows are files.

    Raises
    ------
    OptionError
        If a file has no value, and is not left out.
    """
    index = files.plan([name])
    if not (spec := index.find([name])[name]).has_one_value:
        raise OptionError(
            f"Windows: episode={name!r} with rows=Files(): each file is a step, and the column has {spec} there; "
            "expected one value a file. If each file is an episode of its own, leave episode= out."
        )
    values, kept = index.values([name], stored=True)[name], {*index.kept.tolist()}
    of_files: dict[str, Any] = {path: path for path in files.paths}  # what is left out is a step of no other
    for row, (file, value) in enumerate(zip(index.files.files_of(index.every_row()), values.to_pylist(), strict=True)):
        if value is not None:
            of_files[index.files.path(int(file))] = value
        elif row in kept:
            raise OptionError(f"{index.files.where(row)}: Windows: episode={name!r} has no value for this file")
    return of_files


def _with_labels(index: RowIndex, labels: Iterable[Classes], *, of_some: bool) -> RowIndex:
    """Return the index with the classes of those columns that it delivers.

    `of_some` says that it has some columns of what is read: others may then have classes. Raises an OptionError for a
    column that has no classes, or is not delivered, and an UnknownColumnError for one that does not exist.
    """
    with_classes = []
    names = {name.strip("/"): name for name in index.names}
    for labelled in labels:
        if labelled.name not in names:
            try:
                index.find([labelled.name])
            except UnknownColumnError:
                raise UnknownColumnError(f"labels: {no_column([labelled.name], index.names)}") from None
            if of_some:
                continue
            raise OptionError(
                f"labels: column {labelled.name!r} is not delivered. Write columns=[..., {labelled.name!r}], or leave "
                "it out of labels; predicates and balance compare the values without it."
            )
        asked = replace(labelled, name=names[labelled.name])
        asked.spec(index.find([asked.name])[asked.name])
        with_classes.append(asked if asked.values else _of_files(index, asked))
        if not asked.values and first_time("labels", asked.name, str(with_classes[-1]), *index.files.all_paths()):
            logger.info("labels: %s: %s", asked.name, with_classes[-1])
    return replace(index, labels=tuple(with_classes)) if with_classes else index


def _of_files(index: RowIndex, asked: Classes) -> Classes:
    """Return the classes that the files have: their categories, or else the values of all rows."""
    name = asked.name
    if (column := index.beside.columns.get(name)) is not None and column.table.is_in_files:
        files = cast("FilesBeside", column.table)
        return replace(_of_files(files.index, replace(asked, name=column.stored)), name=name)
    if name in index.columns:
        answers = index.lookup.ask(index.files.all_paths(), Question(tuple(index.columns)))
        columns = [facts.columns[name] for facts in answers if name in facts.columns]
        are_text = (column.spec.element is not None and column.spec.element.kind in "OSU" for column in columns)
        if all(column.spec.kind == "category" and column.enum for column in columns) and all(are_text):
            return classes_of(name, (value for column in columns for value, _ in column.enum), asked.others)
    spec = index.find([name])[name]
    if spec.type.drawn:
        raise OptionError(
            f"labels={{{name!r}: 'auto'}}: the column is drawn, so its values are others in each epoch; list the "
            f"classes, as in labels={{{name!r}: ['a', 'b']}}"
        )
    if spec.has_one_value and not levels_of(spec):
        column = index.values([name], stored=True)[name]
    elif (table := index.beside.columns.get(name)) is not None:
        column = table.different(index.files)
    else:
        held = spec.dtype if spec.element is None else spec.element.base
        seen = virtual_name(name, FirstSeen("O" if held.kind in "OSU" else held.str))
        column = pc.list_flatten(index.values([seen], stored=True)[seen])
    values: list[Value | None] = column.unique().to_pylist()
    if None in values and asked.others is None:
        has_one = spec.has_one_value and not levels_of(spec)
        rows = f"; or list the classes, and leave such rows out with the predicate ~where(**{{{name!r}: None}})"
        raise OptionError(
            f"labels={{{name!r}: 'auto'}}: the value is missing in some rows. Pass labels={{{name!r}: {{None: -1}}}}, "
            f"which finds the classes and gives -1 to missing values{rows if has_one else ''}."
        )
    return classes_of(name, (value for value in values if value is not None), asked.others)


# Suggested calls are run before they are printed -----------------------------------------------------------------


def _read_ends(index: RowIndex) -> None:
    """Read the first and the last row.

    Raises
    ------
    RayH5Error
        If there is no row, or one cannot be read, or bounds leave out values.
    """
    counts = index.files.rows.lengths
    filled = np.flatnonzero(counts)
    if not len(filled):
        raise SchemaMismatchError("expected rows, found none")
    names = [name for name, spec in index.columns.items() if spec.row_bytes <= _MAX_ROW_BYTES]
    ranges = [column for column in index.scope.columns if isinstance(column, Ragged) and index.scope.rows is None]
    for file, row in ((int(filled[0]), 0), (int(filled[-1]), int(counts[filled[-1]]) - 1)):
        table = index.tables[file] if index.tables else None
        with index.open(file) as reader:
            reader.read(names, np.array([row]))
            for made in ranges:
                # Offsets and ends are of all values: planning has compared them.
                bounds = None if table is None else table.bounds.get(made.bounds_only)
                if bounds is None or not isinstance(made.content, str):
                    continue
                length = reader.base.column(made.content).num_rows
                if (total := bounds.total) != length:
                    raise SchemaMismatchError(f"{made}: its rows have {total} of {length} values")
