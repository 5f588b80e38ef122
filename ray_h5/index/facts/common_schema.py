"""The columns that all files share, or an error that says how the files differ."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ray_h5.columns.schema import NULLABLE_KINDS, TENSOR_KINDS, Cast, ColumnSpec, shown_shape
from ray_h5.errors import SchemaMismatchError
from ray_h5.hdf5.columns.dtypes import as_dtype
from ray_h5.index.facts.file_facts import ColumnFacts, FileFacts
from ray_h5.index.file_opener import Scope

logger = logging.getLogger(__name__)

_ENCODED_KINDS = frozenset({"category", "optional"})

Schema = Mapping[str, ColumnSpec]


def common_columns(
    facts: Sequence[FileFacts], columns: Sequence[str] | None, scope: Scope, cast: Cast
) -> dict[str, ColumnSpec]:
    """Return the columns of all files, in dtypes that hold the values of each file.

    Parameters
    ----------
    facts : sequence of FileFacts
        The files.
    columns : sequence of str, optional
        The columns to read; None takes all.
    scope : Scope
        How the files are opened.
    cast : Cast
        The casts while columns are read. The dtypes of columns that are cast may differ between files.

    Raises
    ------
    SchemaMismatchError
        If the files differ.
    UnknownColumnError, UnsupportedColumnError
        If no file has a column.
    """
    for name in columns or ():
        if not any(name in each.columns for each in facts):
            with scope.open(facts[0].path, facts[0].state) as reader:
                reader.column(name)  # raises, with near names
    facts = _without_trailing_axes(facts, columns)
    facts = _with_common_shapes(facts, columns)
    facts = _with_common_values(facts, columns, cast)
    schemas = _schemas(facts, columns, cast)
    first = schemas[0]
    if any(schema != first for schema in schemas):
        from ray_h5.index.facts.schema_errors import mismatch

        raise mismatch(facts, schemas, columns)
    names = list(first) if columns is None else columns
    for name in names:
        check_enums([each for each in facts if not _is_by_value(each.columns[name].spec, cast)], name)
    return {name: _common([each.columns[name].spec for each in facts]) for name in names}


def _without_trailing_axes(facts: Sequence[FileFacts], columns: Sequence[str] | None) -> Sequence[FileFacts]:
    """Return facts in which rows of shape (3, 1) in one file are rows of (3,) if they have one axis in another file."""
    seen: dict[str, dict[tuple[int | None, ...], str]] = {}
    for each in facts:
        for name, column in each.chosen(columns).items():
            seen.setdefault(name, {}).setdefault(column.spec.ragged_shape or column.spec.row_shape, each.path)
    common: dict[str, int] = {}
    for name, shapes in seen.items():
        axes = min(map(len, shapes))
        if {length for shape in shapes for length in shape[axes:]} == {1}:
            common[name] = axes
            first = {len(shape): f"{shown_shape(shape)} in {path}" for shape, path in reversed(shapes.items())}
            shown = ", ".join(said for _, said in sorted(first.items()))
            logger.warning("column %r has rows of shape %s: they are read without the last axes of one", name, shown)

    def shortened(column: ColumnFacts) -> ColumnFacts:
        axes, spec = common.get(column.spec.name), column.spec
        short = replace(spec, row_shape=spec.row_shape[:axes], ragged_shape=spec.ragged_shape[:axes])
        return column if short == spec else replace(column, spec=short)

    if not common:
        return facts
    return [replace(each, columns={name: shortened(c) for name, c in each.columns.items()}) for each in facts]


def _with_common_shapes(facts: Sequence[FileFacts], columns: Sequence[str] | None) -> Sequence[FileFacts]:
    """Return facts in which columns are ragged whose rows have another shape in another file."""
    shapes, sizes = _common_shapes(facts, columns)
    if not shapes:
        return facts
    specs: dict[tuple[str, np.dtype], ColumnSpec] = {}  # many files share one

    def as_ragged(column: ColumnFacts) -> ColumnFacts:
        spec = column.spec
        shape = shapes.get(spec.name)
        if shape is None or len(spec.ragged_shape or spec.row_shape) != len(shape):
            return column
        element = spec.dtype if spec.element is None else spec.element
        if (spec.name, element) not in specs:
            specs[spec.name, element] = ColumnSpec(
                spec.name,
                "ragged",
                np.dtype(object),
                (),
                element,
                ragged_shape=shape,
                mean_bytes=sizes[spec.name],
            )
        return ColumnFacts(specs[spec.name, element], column.num_rows, column.chunk_rows, column.enum)

    return [replace(each, columns={name: as_ragged(c) for name, c in each.columns.items()}) for each in facts]


def _common_shapes(
    facts: Sequence[FileFacts], columns: Sequence[str] | None
) -> tuple[dict[str, tuple[int | None, ...]], dict[str, int]]:
    """Return the shape of the rows of columns that are ragged, or differ in it, and the bytes of the largest row."""
    shapes: dict[str, tuple[int | None, ...]] = {}
    sizes: dict[str, int] = {}
    ragged: set[str] = set()
    for each in facts:
        for name, column in each.chosen(columns).items():
            spec = column.spec
            if spec.kind != "ragged" and (spec.kind not in TENSOR_KINDS or not spec.row_shape):
                continue
            shape: tuple[int | None, ...] = spec.ragged_shape or spec.row_shape
            known = shapes.setdefault(name, shape)
            if len(known) != len(shape):
                continue  # the comparison of the files reports it
            shapes[name] = tuple(one if one == other else None for one, other in zip(known, shape, strict=True))
            sizes[name] = max(sizes.get(name, 0), spec.row_bytes)
            if spec.kind == "ragged" or None in shapes[name]:
                ragged.add(name)
    return {name: shapes[name] for name in ragged}, sizes


def _with_common_values(facts: Sequence[FileFacts], columns: Sequence[str] | None, cast: Cast) -> Sequence[FileFacts]:
    """Return facts in which a column has one kind, if the files encode equal types of values in different ways.

    One file may keep text as categories, and another one as strings; or integers with a mask of missing ones, and
    without it.
    """
    common: dict[str, ColumnSpec] = {}
    for name in dict.fromkeys(name for each in facts for name in each.chosen(columns)):
        specs = {each.columns[name].spec: each for each in reversed(facts) if name in each.columns}
        kinds = {spec.kind for spec in specs}
        if len(kinds) == 1 or not kinds & _ENCODED_KINDS or not all(spec.is_scalar for spec in specs):
            continue
        _check_codes(name, facts, cast)
        spec = next(iter(specs))
        if len({spec.value_type for spec in specs}) > 1:
            continue  # the comparison of the files reports it
        if kinds <= {"category", "string"}:
            common[name] = ColumnSpec(name, "string", np.dtype(object), ())
        elif kinds <= {"category", "optional", *TENSOR_KINDS}:
            held = spec.dtype if spec.element is None else spec.element
            common[name] = ColumnSpec(name, "optional", np.dtype(object), (), held)

    def by_value(column: ColumnFacts) -> ColumnFacts:
        return replace(column, spec=common.get(column.spec.name, column.spec))

    if not common:
        return facts
    return [replace(each, columns={name: by_value(c) for name, c in each.columns.items()}) for each in facts]


def _check_codes(name: str, facts: Sequence[FileFacts], cast: Cast) -> None:
    """Raise if codes are asked for and a file keeps values, which have none."""
    wanted = cast.dtypes.get(name)
    if wanted is None or as_dtype(wanted, f"column {name!r} in dtypes").kind not in "iu":
        return
    columns = [(each.path, each.columns[name]) for each in facts if name in each.columns]
    coded = next((path for path, column in columns if column.spec.kind == "category"), None)
    plain = next(((path, c.spec) for path, c in columns if c.spec.kind != "category" and not c.enum), None)
    if coded is None or plain is None:
        return
    path, spec = plain
    floats = "" if spec.kind == "string" else ", or pass a float to get them as numbers"
    raise SchemaMismatchError(
        f"column {name!r}: dtypes asks for {wanted}, which delivers the codes of its categories in {coded}; "
        f"{path} holds {spec}, which has no codes. Leave {name!r} out of dtypes to get the values of all "
        f"files{floats}; or write the column of that file again as categories."
    )


def check_enums(facts: Sequence[FileFacts], column: str) -> None:
    """Raise if an integer of an enum has different names in two files, or a name has different integers.

    Raises
    ------
    SchemaMismatchError
        With both files and their names.
    """
    called: dict[str, tuple[int, FileFacts]] = {}
    meant: dict[tuple[str, int], tuple[str, FileFacts]] = {}
    for each in facts:
        for name, value in each.columns[column].enum if column in each.columns else ():
            # Compound values may have several enums: names begin with that of the field.
            field = name.rpartition(".")[0] if each.columns[column].spec.kind == "struct" else ""
            value_there, one = called.setdefault(name, (value, each))
            name_there, other = meant.setdefault((field, value), (name, each))
            if (value_there, name_there) != (value, name):
                from ray_h5.index.facts.schema_errors import disagreement

                raise disagreement(column, one if value_there != value else other, each)


def _is_by_value(spec: ColumnSpec, cast: Cast) -> bool:
    """Return whether a column is delivered as values, so that the files may have other codes for them."""
    return spec.kind in NULLABLE_KINDS and cast(spec).dtype.kind not in "iu"


def _schemas(facts: Sequence[FileFacts], columns: Sequence[str] | None, cast: Cast) -> list[Schema]:
    """Return the columns of each file as they are compared. Files share specs, which are delivered once."""
    known: dict[int, ColumnSpec] = {}

    def delivered(spec: ColumnSpec) -> ColumnSpec:
        found = known.get(id(spec))
        if found is None:
            found = known[id(spec)] = _delivered(spec, cast)
        return found

    return [{name: delivered(column.spec) for name, column in each.chosen(columns).items()} for each in facts]


def _delivered(spec: ColumnSpec, cast: Cast) -> ColumnSpec:
    if spec.kind == "struct":
        return replace(spec, dtype=_packed(spec.dtype))
    if spec.kind in {"ragged", "sparse"}:
        spec = replace(spec, mean_bytes=0)  # the rows of each file have their own
    castable = TENSOR_KINDS | {"ragged", "sparse", "category", "optional"}
    return cast(spec) if spec.kind in castable else spec


def _packed(dtype: np.dtype) -> np.dtype:
    """Return a compound type without what Arrow does not have: padding, and fixed lengths of strings."""
    if dtype.names is not None:
        return np.dtype([(name, _packed(dtype[name])) for name in dtype.names])
    if dtype.subdtype is not None:
        return np.dtype((_packed(dtype.subdtype[0]), dtype.subdtype[1]))
    return np.dtype(object) if dtype.kind == "S" else dtype


def _common(specs: Sequence[ColumnSpec]) -> ColumnSpec:
    """Return the spec that holds the values of a column of all files."""
    if all(each == specs[0] for each in specs):
        return specs[0]
    if specs[0].kind in {"ragged", "sparse"}:
        elements = {each.element for each in specs if each.element is not None}
        # The largest, so that it does not depend on the order of the files, and blocks are not too large.
        most = max(each.mean_bytes for each in specs)
        return replace(specs[0], element=np.result_type(*elements), mean_bytes=most)
    kind = "number" if specs[0].kind in TENSOR_KINDS else specs[0].kind
    return replace(specs[0], kind=kind, dtype=np.result_type(*{each.dtype for each in specs}))
