"""Errors that say how the columns of files differ."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from ray_h5.columns.schema import TENSOR_KINDS, ColumnSpec
from ray_h5.errors import SchemaMismatchError
from ray_h5.index.facts.file_facts import FileFacts
from ray_h5.likely_rows.alike import pattern_of
from ray_h5.likely_rows.suggestions import Suggestion, samples
from ray_h5.likely_rows.tree import FileTree, Seen
from ray_h5.messages import common_pattern, few

_MAX_LISTED = 10
ENCODED_KINDS = frozenset({"category", "optional"})

Schema = Mapping[str, ColumnSpec]


def disagreement(column: str, one: FileFacts, other: FileFacts) -> SchemaMismatchError:
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


def mismatch(
    facts: Sequence[FileFacts], schemas: Sequence[Schema], columns: Sequence[str] | None
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
        "Choose columns that all files share with columns=[...], or leave those files out."
        + (f" Numbers can be cast while they are read: pass dtypes={casts}." if casts else "")
        + _pairs(facts, schemas, columns)
    )
    # Groups may be rows, which each file may have others of.
    columns_seen = {name: column for file in facts[_MAX_LISTED::-1] for name, column in file.columns.items()}
    tree = FileTree({name: Seen(str(column.dtype), column.shape) for name, column in columns_seen.items()})
    error.suggestions = (*_groups_of_files(schemas), *samples(tree))
    return error


def _groups_of_files(schemas: Sequence[Schema]) -> Iterator[Suggestion]:
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
    columns = ", ".join(f"ray_h5.joined({glob!r}, name={glob.rpartition('/')[2]!r})" for glob in globs)
    yield Suggestion("Each file has a group of its own", "for the rows of all of them", f"columns=[{columns}]")


def _pairs(facts: Sequence[FileFacts], schemas: Sequence[Schema], columns: Sequence[str] | None) -> str:
    """Return a sentence about files that are probably read together by row, such as images and labels."""
    by_names: dict[frozenset[str], list[FileFacts]] = {}
    for file_facts, schema in zip(facts, schemas, strict=True):
        by_names.setdefault(frozenset(schema), []).append(file_facts)
    if len(by_names) != 2:
        return ""
    (names, first), (others, second) = by_names.items()
    rows = [[file_facts.num_rows(columns) for file_facts in some] for some in (first, second)]
    if names & others or rows[0] != rows[1]:
        return ""
    paths = [[file_facts.path for file_facts in some] for some in (first, second)]
    globs = [some[0] if len(some) == 1 else common_pattern(some) for some in paths]
    if any(fnmatchcase(path, globs[0]) for path in paths[1]) or any(fnmatchcase(path, globs[1]) for path in paths[0]):
        return " Files that have the same rows are read together: pass some as paths, and the others as zip_files=."
    return f" If rows of these files belong together, pass the paths {globs[0]!r} and zip_files={globs[1]!r}."


def _usual(schemas: Sequence[Schema], columns: Sequence[str] | None) -> Schema:
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


def _difference(expected: Schema, schema: Schema, left_out: Mapping[str, str]) -> str:
    notes = []
    for name, spec in expected.items():
        if name in schema and schema[name] != spec:
            notes.append(f"column {name!r}: expected {spec}, found {schema[name]}")
        elif name not in schema:
            what = f"cannot be read: {left_out[name]}" if name in left_out else "is missing"
            notes.append(f"column {name!r} {what}")
    return "; ".join(notes + [f"column {name!r} is not in the others" for name in schema if name not in expected])


def _casts(expected: Schema, wrong: Sequence[Schema]) -> dict[str, str]:
    """Return casts for the columns that differ only in the dtype of their numbers."""
    casts = {}
    for name, spec in expected.items():
        others = {schema[name] for schema in wrong if name in schema} - {spec}
        if others and all(_differ_in_dtype(spec, other) for other in others):
            held = [variant.element or variant.dtype for variant in {spec, *others}]
            # Codes are integers, and floats alone can say that a value is missing.
            is_encoded = any(variant.kind in ENCODED_KINDS for variant in {spec, *others})
            casts[name] = np.result_type(*held, *([np.float32] if is_encoded else [])).name
    return casts


def _differ_in_dtype(one: ColumnSpec, other: ColumnSpec) -> bool:
    if one.kind == other.kind == "sparse":
        return one.ragged_shape == other.ragged_shape and one.element != other.element
    if {one.kind, other.kind} & ENCODED_KINDS:
        return all(spec.is_scalar and (spec.element or spec.dtype).kind in "biuf" for spec in (one, other))
    return {one.kind, other.kind} <= TENSOR_KINDS and one.row_shape == other.row_shape
