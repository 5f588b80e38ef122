"""The columns that all files share, or an error that says how the files differ."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

import numpy as np

from ray_h5.columns.schema import NULLABLE_KINDS, TENSOR_KINDS, Cast, ColumnSpec, shown_shape
from ray_h5.errors import SchemaMismatchError
from ray_h5.hdf5.format.value_types import as_dtype
from ray_h5.index.facts.file_facts import ColumnFacts, FileFacts
from ray_h5.likely_rows.alike import pattern_of
from ray_h5.likely_rows.arguments import made
from ray_h5.likely_rows.suggestions import Suggestion, samples
from ray_h5.likely_rows.tree import FileTree, Seen
from ray_h5.manifest.value_type import ValueType
from ray_h5.messages import common_pattern, few
from ray_h5.scope import Scope

logger = logging.getLogger(__name__)

_MAX_LISTED = 10
_ENCODED_KINDS = frozenset({"category", "optional"})

_Schema = Mapping[str, ColumnSpec]

_ID = re.compile(r"(?:^|[^A-Za-z]|[a-z](?=I[dD]))(?:[iI][dD]|uuid|guid|key)s?$")
"""Ends of names of ids: ``event_id``, ``eventID``, and not ``grid``."""


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
    # Most files share one mapping of columns. Of those that do, the first one stands for all.
    firsts = [*{(id(one.columns), one.listing): one for one in reversed(facts)}.values()][::-1]
    check_known(firsts, columns or (), scope)
    chosen = [file_facts.chosen(columns) for file_facts in firsts]
    agreed = _agreed(firsts, chosen, cast)
    if scope.may_lack:
        _allow_none(agreed, firsts, chosen)
    delivered = {name: {spec: _delivered(one, cast) for spec, one in specs.items()} for name, specs in agreed.items()}

    def schema(columns_of: Mapping[str, ColumnFacts]) -> _Schema:
        return {name: delivered[name][column.spec] for name, column in columns_of.items()}

    schemas = list(map(schema, chosen))
    expected = {name: spec for one in reversed(schemas) for name, spec in one.items()}
    if any({**(expected if scope.may_lack else {}), **one} != expected for one in schemas):
        raise _mismatch(facts, [schema(one.chosen(columns)) for one in facts], columns)
    names = list(dict.fromkeys(name for one in schemas for name in one)) if columns is None else columns
    for name in names:
        _check_delivered_enums(name, agreed[name], firsts, cast)
    common = {name: _common(list(agreed[name].values())) for name in names}
    return {
        name: spec.with_type(nullable=spec.type.nullable or _lacks_rows(spec, chosen)) for name, spec in common.items()
    }


def _lacks_rows(spec: ColumnSpec, chosen: Sequence[Mapping[str, ColumnFacts]]) -> bool:
    """Return whether rows of varying shape are missing somewhere: all blocks have one type, also those with all."""
    of_files = (columns.get(spec.name) for columns in chosen)
    return spec.kind == "ragged" and any(column is None or column.spec.type.nullable for column in of_files)


def check_known(facts: Sequence[FileFacts], columns: Iterable[str], scope: Scope) -> None:
    """Raise an `UnknownColumnError` or `UnsupportedColumnError` for a column that no file has."""
    for name in columns:
        if not any(name in file_facts.columns for file_facts in facts):
            with scope.open(facts[0].path, facts[0].state) as reader:
                reader.column(name)  # raises, with near names


def _agreed(
    facts: Sequence[FileFacts], chosen: Sequence[Mapping[str, ColumnFacts]], cast: Cast
) -> dict[str, dict[ColumnSpec, ColumnSpec]]:
    """Return for each column, and each spec that a file has of it, the spec that it is compared as."""
    paths: dict[str, dict[ColumnSpec, str]] = {}
    for file_facts, columns in zip(facts, chosen, strict=True):
        for name, column in columns.items():
            paths.setdefault(name, {}).setdefault(column.spec, file_facts.path)
    agreed: dict[str, dict[ColumnSpec, ColumnSpec]] = {}
    for name, by_spec in paths.items():
        specs: Sequence[ColumnSpec] = [*by_spec]
        if len(specs) > 1 or specs[0].kind == "ragged":
            specs = _with_common_shape(_without_trailing_axes(name, by_spec))
            specs = _with_common_values(name, specs, facts, cast)
        agreed[name] = dict(zip(by_spec, specs, strict=True))
    return agreed


def _check_delivered_enums(
    name: str, agreed: Mapping[ColumnSpec, ColumnSpec], facts: Sequence[FileFacts], cast: Cast
) -> None:
    """Raise as `check_enums`. Files may have other codes for a column that is delivered as values."""
    nullable = [(stored, cast(spec)) for stored, spec in agreed.items() if spec.kind in NULLABLE_KINDS]
    by_value = {stored for stored, spec in nullable if spec.dtype.kind not in "iu"}
    check_enums([one for one in facts if name in one.columns and one.columns[name].spec not in by_value], name)


def _shape(spec: ColumnSpec) -> tuple[int | None, ...]:
    steps = spec.type.varying_shape if spec.kind == "list" and spec.row_shape else None
    return steps or spec.type.shape


def _without_trailing_axes(name: str, paths: Mapping[ColumnSpec, str]) -> list[ColumnSpec]:
    """Return specs in which rows of shape (3, 1) in one file are rows of (3,) if they have one axis in another file."""
    shapes = {_shape(spec): path for spec, path in reversed([*paths.items()])}
    axes = min(map(len, shapes))
    if {length for shape in shapes for length in shape[axes:]} != {1}:
        return [*paths]
    first = {len(shape): f"{shown_shape(shape)} in {path}" for shape, path in shapes.items()}
    shown = ", ".join(said for _, said in sorted(first.items()))
    logger.warning("column %r has rows of shape %s: they are read without the last axes of one", name, shown)
    return [
        spec.with_type(row_shape=spec.row_shape[:axes], ragged_shape=spec.type.ragged_shape[:axes]) for spec in paths
    ]


def _with_common_shape(specs: Sequence[ColumnSpec]) -> Sequence[ColumnSpec]:
    """Return specs that are ragged if rows have other shapes in other files, with the bytes of the largest row."""
    lists = next((spec for spec in specs if spec.kind == "list"), None)
    if lists is not None and lists.element is not None:  # steps of varying length, which are alike in some files
        own = lists.element.shape
        return [
            lists.with_type(element=np.dtype((spec.dtype, own)), drawn=spec.type.drawn)
            if spec.kind in TENSOR_KINDS and lists.holds(spec)
            else spec
            for spec in specs
        ]
    shaped = [spec for spec in specs if spec.kind == "ragged" or (spec.kind in TENSOR_KINDS and spec.row_shape)]
    shaped = [spec for spec in shaped if len(_shape(spec)) == len(_shape(shaped[0]))]  # of others, the comparison says
    lengths = [set(axis) for axis in zip(*map(_shape, shaped), strict=True)]
    shape = tuple(axis.pop() if len(axis) == 1 else None for axis in lengths)
    if None not in shape and all(spec.kind != "ragged" for spec in shaped):
        return specs
    size = max(spec.row_bytes for spec in shaped)
    made = partial(ValueType, "ragged", np.dtype(object), ragged_shape=shape)
    return [
        ColumnSpec(spec.name, made(element=spec.type.held, drawn=spec.type.drawn), size) if spec in shaped else spec
        for spec in specs
    ]


def _with_common_values(
    name: str, specs: Sequence[ColumnSpec], facts: Sequence[FileFacts], cast: Cast
) -> Sequence[ColumnSpec]:
    """Return specs of one kind, if the files encode equal types of values in different ways.

    One file may keep text as categories, and another one as strings; or integers with a mask of missing ones, and
    without it.
    """
    kinds = {spec.kind for spec in specs}
    if len(kinds) == 1 or not kinds & _ENCODED_KINDS or not all(spec.is_scalar for spec in specs):
        return specs
    _check_codes(name, facts, cast)
    if len({spec.value_type for spec in specs}) > 1:
        return specs  # the comparison of the files reports it
    common = specs[-1]
    if kinds <= {"category", "string"}:
        type_ = ValueType("string", np.dtype(object), drawn=common.type.drawn)
    elif kinds <= {"category", "optional", *TENSOR_KINDS}:
        type_ = ValueType("optional", np.dtype(object), element=common.type.held, drawn=common.type.drawn)
    else:
        return specs
    return [ColumnSpec(name, type_)] * len(specs)


def _allow_none(
    agreed: Mapping[str, dict[ColumnSpec, ColumnSpec]],
    facts: Sequence[FileFacts],
    chosen: Sequence[Mapping[str, ColumnFacts]],
) -> None:
    """Let columns that a file lacks be None."""
    for name, by_spec in agreed.items():
        lacking = (one for one, columns in zip(facts, chosen, strict=True) if name not in columns)
        if (lacks := next(lacking, None)) is not None:
            by_spec.update({stored: _with_none(spec, lacks) for stored, spec in by_spec.items()})


def _with_none(spec: ColumnSpec, lacks: FileFacts) -> ColumnSpec:
    """Return the spec of a column that a file lacks: its rows have None."""
    if (with_none := spec.with_none) is not None:
        return with_none.with_type(nullable=spec.type.nullable)  # whether rows are missing is said of all files
    raise SchemaMismatchError(
        f"{lacks.path}: column {spec.name!r} is missing, and others have {spec}; values of this type cannot "
        "be None. Leave the column out with columns=[...]."
    )


def _check_codes(name: str, facts: Sequence[FileFacts], cast: Cast) -> None:
    """Raise if codes are asked for and a file keeps values, which have none."""
    wanted = cast.dtypes.get(name)
    if wanted is None or as_dtype(wanted, f"column {name!r} in dtypes").kind not in "iu":
        return
    columns = [(file_facts.path, file_facts.columns[name]) for file_facts in facts if name in file_facts.columns]
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
    for file_facts in facts:
        for name, value in file_facts.columns[column].enum if column in file_facts.columns else ():
            # Compound values may have several enums: names begin with that of the field.
            field = name.rpartition(".")[0] if file_facts.columns[column].spec.kind == "struct" else ""
            value_there, one = called.setdefault(name, (value, file_facts))
            name_there, other = meant.setdefault((field, value), (name, file_facts))
            if (value_there, name_there) != (value, name):
                raise _disagreement(column, one if value_there != value else other, file_facts)


def _delivered(spec: ColumnSpec, cast: Cast) -> ColumnSpec:
    if spec.kind == "struct":
        return spec.with_type(dtype=_packed(spec.dtype))
    if spec.kind in {"ragged", "sparse"}:
        spec = replace(spec, mean_bytes=0)  # the rows of each file have their own
    castable = TENSOR_KINDS | {"ragged", "sparse", "list", "category", "optional"}
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
    if all(spec == specs[0] for spec in specs):
        return specs[0]
    if specs[0].kind in {"ragged", "sparse"}:
        elements = {spec.element for spec in specs if spec.element is not None}
        # The largest, so that it does not depend on the order of the files, and blocks are not too large.
        most = max(spec.mean_bytes for spec in specs)
        return replace(specs[0].with_type(element=np.result_type(*elements)), mean_bytes=most)
    kind = "number" if specs[0].kind in TENSOR_KINDS else specs[0].kind
    return specs[0].with_type(kind=kind, dtype=np.result_type(*{spec.dtype for spec in specs}))


# How files differ -----------------------------------------------------------------------------------------------


def _disagreement(column: str, one: FileFacts, other: FileFacts) -> SchemaMismatchError:
    """Return the error of an enum whose integers mean other things in another file."""
    enums = [(file_facts.path, file_facts.columns[column].enum) for file_facts in (one, other)]
    common = {*enums[0][1]} & {*enums[1][1]}
    lines = []
    for path, enum in enums:
        ordered = sorted(enum, key=lambda member: (member in common, member[1]))  # those that differ first
        lines.append(f"  {path}: {few([f'{name}={value}' for name, value in ordered])}")
    listed = "\n".join(lines)
    ways = "Write the column of one of them again with the integers of the other, or read the files separately."
    if one.columns[column].spec.kind == "category":
        ways = f"Pass labels={{{column!r}: 'auto'}} instead of dtypes for this column: numbers that all files share."
    return SchemaMismatchError(f"column {column!r}: the files disagree on what its integers mean:\n{listed}\n{ways}")


def _mismatch(
    facts: Sequence[FileFacts], schemas: Sequence[_Schema], columns: Sequence[str] | None
) -> SchemaMismatchError:
    """Return the error of files that do not have the columns that most files have."""
    expected = _usual(schemas, columns)
    wrong = [(file_facts, schema) for file_facts, schema in zip(facts, schemas, strict=True) if schema != expected]
    listed = "\n".join(
        f"  {file_facts.path}: {_difference(expected, schema, dict(file_facts.left_out))}"
        for file_facts, schema in wrong[:_MAX_LISTED]
    )
    casts = _casts(expected, [schema for _, schema in wrong])
    error = SchemaMismatchError(
        f"{len(wrong)} of {len(schemas)} files do not have the columns that the others have:\n{listed}\n"
        "Choose columns that all files share with columns=[...], or leave those files out; or pass missing='null': "
        "values are None where a file lacks a column."
        + (f" Numbers can be cast while they are read: pass dtypes={casts}." if casts else "")
        + _pairs(facts, schemas, columns)
    )
    # Groups may be rows, which each file may have others of.
    columns_seen = {name: column for file in facts[_MAX_LISTED::-1] for name, column in file.columns.items()}
    tree = FileTree({name: Seen(str(column.dtype), column.shape) for name, column in columns_seen.items()})
    error.suggestions = (*_groups_of_files(schemas), *samples(tree))
    return error


def _groups_of_files(schemas: Sequence[_Schema]) -> Iterator[Suggestion]:
    """Yield what reads files whose columns are in a group with a name of its own, such as that of a subject."""
    by_form: dict[str, list[str]] = {}
    for name in (name for schema in schemas for name in schema):
        by_form.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    if any(len(names) != len(schemas) for names in by_form.values()) or len(by_form) > _MAX_LISTED:
        return
    globs = [pattern_of(names) for names in by_form.values()]
    groups = {glob.rpartition("/")[0] for glob in globs}
    if len(groups) != 1 or "*" not in groups.pop() or any("*" in glob.rpartition("/")[2] for glob in globs):
        return
    columns = [made("joined", glob, name=glob.rpartition("/")[2]) for glob in globs]
    yield Suggestion("Each file has a group of its own", "for the rows of all of them", {"columns": columns})


def _pairs(facts: Sequence[FileFacts], schemas: Sequence[_Schema], columns: Sequence[str] | None) -> str:
    """Return a sentence about files that are probably read together by row, such as images and labels."""
    by_names: dict[frozenset[str], list[FileFacts]] = {}
    for file_facts, schema in zip(facts, schemas, strict=True):
        by_names.setdefault(frozenset(schema), []).append(file_facts)
    if len(by_names) != 2:
        return ""
    (names, first), (others, second) = by_names.items()
    rows = [[file_facts.num_rows(columns) for file_facts in some] for some in (first, second)]
    are_beside = not names & others and rows[0] == rows[1]
    ids = sorted(name for name in names & others if schemas[0][name].is_id and _ID.search(name))
    ids = ids if names - others and others - names else []
    if not are_beside and not ids:
        return ""
    paths = [[file_facts.path for file_facts in some] for some in (first, second)]
    globs = [some[0] if len(some) == 1 else common_pattern(some) for some in paths]
    if ids:  # the rows of the larger side, such as questions, take those of the other, such as images
        of_rows, of_table = globs if sum(rows[0]) >= sum(rows[1]) else reversed(globs)
        takes = f"Sidecar({of_table!r}, on={ids[0]!r})"
        return f" If equal {ids[0]!r} belong together, pass the paths {of_rows!r} and sidecar={takes}."
    if any(fnmatchcase(path, globs[0]) for path in paths[1]) or any(fnmatchcase(path, globs[1]) for path in paths[0]):
        return " Files that have the same rows are read together: pass some as paths, and the others as zip_files=."
    return f" If rows of these files belong together, pass the paths {globs[0]!r} and zip_files={globs[1]!r}."


def _usual(schemas: Sequence[_Schema], columns: Sequence[str] | None) -> _Schema:
    """Return the schema that most files have."""
    counts: dict[str, Counter[ColumnSpec]] = {}
    for schema in schemas:
        for name, spec in schema.items():
            counts.setdefault(name, Counter())[spec] += 1
    usual = {}
    for name, specs in counts.items():
        # If half of the files have it, the first one decides.
        more = 2 * specs.total() - len(schemas)
        if columns is not None or more > 0 or (more == 0 and name in schemas[0]):
            usual[name] = specs.most_common(1)[0][0]
    return usual


def _difference(expected: _Schema, schema: _Schema, left_out: Mapping[str, str]) -> str:
    notes = []
    for name, spec in expected.items():
        if name in schema and schema[name] != spec:
            notes.append(f"column {name!r}: expected {spec}, found {schema[name]}")
        elif name not in schema:
            what = f"cannot be read: {left_out[name]}" if name in left_out else "is missing"
            notes.append(f"column {name!r} {what}")
    return "; ".join(notes + [f"column {name!r} is not in the others" for name in schema if name not in expected])


def _casts(expected: _Schema, wrong: Sequence[_Schema]) -> dict[str, str]:
    """Return casts for the columns that differ only in the dtype of their numbers."""
    casts = {}
    for name, spec in expected.items():
        others = {schema[name] for schema in wrong if name in schema} - {spec}
        if others and all(_differ_in_dtype(spec, other) for other in others):
            held = [variant.element or variant.dtype for variant in {spec, *others}]
            # Codes are integers, and floats alone can say that a value is missing.
            is_encoded = any(variant.kind in _ENCODED_KINDS for variant in {spec, *others})
            casts[name] = np.result_type(*held, *([np.float32] if is_encoded else [])).name
    return casts


def _differ_in_dtype(one: ColumnSpec, other: ColumnSpec) -> bool:
    if one.kind == other.kind == "sparse":
        return one.type.ragged_shape == other.type.ragged_shape and one.element != other.element
    if {one.kind, other.kind} & _ENCODED_KINDS:
        return all(spec.is_scalar and (spec.element or spec.dtype).kind in "biuf" for spec in (one, other))
    return {one.kind, other.kind} <= TENSOR_KINDS and one.row_shape == other.row_shape
