"""The classes of labels: those that the user lists, or those that all files have."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

from ray_h5.columns.labels import Classes, Value, classes_of
from ray_h5.errors import OptionError, UnknownColumnError
from ray_h5.index.facts.file_facts import Question
from ray_h5.index.row_index import RowIndex
from ray_h5.lru import first_time
from ray_h5.messages import no_column

logger = logging.getLogger(__name__)


def with_labels(index: RowIndex, labels: Iterable[Classes], *, of_some: bool = False) -> RowIndex:
    """Return the index with the classes of those columns that it delivers.

    Parameters
    ----------
    index : RowIndex
        The columns that are delivered.
    labels : iterable of Classes
        What the user says of them.
    of_some : bool
        Whether the index has some columns of what is read; others may then have classes.

    Raises
    ------
    OptionError
        If a column has no classes, or is not delivered.
    UnknownColumnError
        If it does not exist.
    """
    found = []
    names = {name.strip("/"): name for name in index.names}
    for given in labels:
        if given.name not in names:
            try:
                index.find([given.name])
            except UnknownColumnError:
                raise UnknownColumnError(f"labels: {no_column([given.name], index.names)}") from None
            if of_some:
                continue
            raise OptionError(
                f"labels: column {given.name!r} is not delivered. Write columns=[..., {given.name!r}], or leave it out "
                "of labels; predicates and balance compare the values without it."
            )
        asked = replace(given, name=names[given.name])
        asked.spec(index.find([asked.name])[asked.name])
        found.append(asked if asked.values else _of_files(index, asked))
        if not asked.values and first_time("labels", asked.name, str(found[-1]), *index.files.all_paths()):
            logger.info("labels: %s: %s", asked.name, found[-1])
    return replace(index, labels=tuple(found)) if found else index


def _of_files(index: RowIndex, asked: Classes) -> Classes:
    """Return the classes that the files have: their categories, or else the values of all rows."""
    name = asked.name
    if name in index.columns:
        facts = [
            each.columns[name] for each in index.lookup.ask(index.files.all_paths(), Question(tuple(index.columns)))
        ]
        texts = (each.spec.element is not None and each.spec.element.kind in "OSU" for each in facts)
        if all(each.spec.kind == "category" and each.enum for each in facts) and all(texts):
            return classes_of(name, (value for each in facts for value, _ in each.enum), asked.others)
    spec = index.find([name])[name]
    if not spec.has_one_value:
        raise OptionError(
            f"labels={{{name!r}: 'auto'}}: a row holds several values of shape {spec.shown_shape}; pass the classes in "
            "a list"
        )
    values: list[Value | None] = index.small_columns([spec])[name].unique().to_pylist()
    if None in values and asked.others is None:
        raise OptionError(
            f"labels={{{name!r}: 'auto'}}: the value is missing in some rows. Pass labels={{{name!r}: {{None: -1}}}}, "
            "which finds the classes and gives -1 to missing values; or list the classes, and leave such rows out with "
            f"the predicate ~where(**{{{name!r}: None}})."
        )
    return classes_of(name, (each for each in values if each is not None), asked.others)
