"""Uses of made columns: predicates, weights, labels, keys, folds, casts, padding. `pinned/uses.txt` is the whole table.

As in `makers`, a cell is right, or it is refused; sentences of refusals stand below the table, each once.
"""

import re

import numpy as np
import pyarrow as pa

from ray_h5 import (
    DecodeImage,
    H5Dataset,
    RayH5Error,
    Shuffle,
    Sidecar,
    any_equal,
    balance,
    between,
    kfold,
    loader,
    read_h5,
    where,
    write_h5,
)
from ray_h5.torch_data import Standardize
from tests.golden.makers import IMG, KINDS, SPECS, expected_rows, files, is_same, plain

FIRST = KINDS["first axis"]


class Use:
    """A column that is used: its dataset, and its rows as numpy has them.

    `raw` is the value of a row as a user has it, and `rows` are all of them as lists, numbers and texts.
    """

    def __init__(self, spec, folder, held):
        self.spec, self.name = spec, spec.name
        self.paths = folder / ("reversed files" if spec.options.get("axes") else "files")
        self.options = spec.options if spec.options is not IMG else {"transform": DecodeImage(self.name)}
        self.rows = expected_rows(spec, FIRST, held)
        self.raw = self.as_user(next(each for d in held["files"] for each in spec.rows(d) if each is not None))

    def as_user(self, value):
        return np.datetime64(int(value), "ns") if self.spec.column == "cft" else value

    def dataset(self, columns=None, **more):
        return H5Dataset(self.paths, columns or [self.spec.column], **{**self.options, **more})

    def rows_of(self, columns=None, **more):
        """Return the rows of a dataset with more options."""
        dataset = self.dataset(columns, **more)
        return [dataset[i] for i in range(len(dataset))]

    def read(self, **more):
        """Return the values of all rows that a dataset with more options has."""
        return [plain(row[self.name]) for row in self.rows_of(**more)]

    def is_same(self, found, expected):
        return is_same(found, expected, self.spec.draws, are_steps=False)

    def is_read(self, expected, **more):
        """Return whether all rows of a dataset with more options are as expected."""
        return self.is_same(self.read(**more), expected)

    def batches(self, batch_size=3, **more):
        return loader(self.paths, batch_size, columns=[self.spec.column], **self.options, **more)

    def delivered(self, **more):
        return [plain(row) for batch in self.batches(**more) for row in batch[self.name]]

    def chosen(self, criterion, keep):
        """Return whether a predicate keeps the rows that a function does."""
        return self.read(predicate=where(**{self.name: criterion})) == [row for row in self.rows if keep(row)]


class RayUse(Use):
    """A column that is used in a dataset of Ray."""

    def ds(self, columns=None, predicate=None, **more):
        options = {key: value for key, value in self.options.items() if key != "transform"}
        ds = read_h5(self.paths, columns=columns or [self.spec.column], **options, **more)
        ds = ds if predicate is None else ds.filter(expr=predicate)
        return ds.map_batches(self.options["transform"]) if "transform" in self.options else ds

    def rows_of(self, columns=None, **more):
        return self.ds(columns, **more).take_all()

    def delivered(self, **more):
        return [plain(row[self.name]) for row in self.ds(**more).take_all()]

    def is_written(self, folder):
        """Return whether files that are written of it have its rows; fields of compound values are columns there."""
        write_h5(self.ds(), folder)
        written = H5Dataset(folder)
        return self.name not in written.columns or self.is_same([plain(row[self.name]) for row in written], self.rows)


def _is_above(row, low):
    return row is not None and row >= low


def first_entry(value):
    return first_entry(value[0]) if isinstance(value, (list, tuple, np.ndarray)) and len(value) else value


def entries(row):
    return [each for inner in row for each in entries(inner)] if isinstance(row, list) else [row]


def _where_not_listed(use):
    if not isinstance(use.spec.column, str):
        return None
    found = use.rows_of(["s"], predicate=where(**{use.name: use.raw}))
    return len(found) == sum(row == plain(use.raw) for row in use.rows)


def _any_equal(use):
    if isinstance(use.raw, np.ndarray) and use.raw.ndim == 2 and use.raw.shape[1] > 1:  # classes of one-hot steps
        return use.chosen(any_equal(1), lambda row: any(step[1] for step in row))
    entry = plain(first_entry(use.raw))
    return use.chosen(any_equal(entry), lambda row: entry in entries(row))


def _weights(use):
    found = use.delivered(shuffle=Shuffle(weights=use.name, rows_per_epoch=20))
    return len(found) == 20 and all(row in use.rows and first_entry(row) > 0 for row in found)


def _balance(use):
    found = use.delivered(shuffle=Shuffle(weights=balance(use.name), rows_per_epoch=20))
    return len(found) == 20 and all(row in use.rows for row in found)


def _same_rows(found, use):
    """Return whether each row is delivered once, in any order."""
    is_all = len(found) == len(use.rows) and all(found.count(row) == use.rows.count(row) for row in use.rows)
    return is_all or use.spec.draws > 0


def _labels(use):
    classes = list(dict.fromkeys(entries(use.rows)))
    return use.is_read(numbered(use.rows, classes), labels={use.name: classes})


def numbered(rows, classes):
    numbers = {value: number for number, value in enumerate(classes)}
    return [numbered(row, classes) if isinstance(row, list) else numbers.get(row) for row in rows]


def _labels_auto(use):
    classes = sorted({*entries(use.rows)}.difference([None]))
    return use.is_read(numbered(use.rows, classes), labels={use.name: "auto"})


def _sidecar(use):
    if "sidecar" in use.options:
        return None
    keys = list(dict.fromkeys(map(str, use.rows)))
    values = [use.as_user(next(row for row in use.rows if str(row) == key)) for key in keys]
    is_nested = isinstance(values[0], list)
    table = pa.table({use.name: keys if is_nested else values, "line": range(len(values))})
    rows = use.rows_of([use.spec.column, "line"], sidecar=Sidecar(table, on=use.name))
    return [int(row["line"]) for row in rows] == [keys.index(str(row)) for row in use.rows]


def _kfold(use, **how):
    options = {key: value for key, value in use.options.items() if key != "transform"}
    folds = kfold(use.paths, 2, columns=[use.spec.column], **how, **options)
    found = [[use.read(predicate=part) for part in fold] for fold in folds]
    if "group" in how and any(row in held for rows, held in found for row in rows):
        return False
    return all(_same_rows(rows + held, use) for rows, held in found)


def as_floats(row):
    return [*map(as_floats, row)] if isinstance(row, list) else float(row) if isinstance(row, (int, float)) else row


def _standardize(use):
    scaler = Standardize([use.name]).fit(use.dataset())
    values = np.array(use.dataset()[range(len(use.rows))][use.name], "f8")  # of drawn parts, those of this epoch
    spread = (values - values.mean()) / values.std()
    return np.allclose([plain(scaler(row)[use.name]) for row in use.dataset()], spread, atol=1e-5)


def _padded(use):
    (batch,) = use.batches(len(use.rows), pad=True, shuffle=False)
    found = plain(batch[use.name])
    if (lengths := plain(batch.get(f"{use.name}_length"))) is None:
        return use.is_same(found, use.rows)
    sizes = [length if isinstance(length, list) else [length] for length in lengths]
    return use.is_same([cut(row, size) for row, size in zip(found, sizes, strict=True)], use.rows)


def cut(row, sizes):
    return [cut(each, sizes[1:]) for each in row[: sizes[0]]] if sizes else row


USES = {
    "where": lambda use: use.chosen(use.raw, lambda row: row == plain(use.raw)),
    "where, not listed": _where_not_listed,
    "between": lambda use: use.chosen(between(use.raw, None), lambda row: _is_above(row, plain(use.raw))),
    "where None": lambda use: use.chosen(None, lambda row: row is None),
    "any_equal": _any_equal,
    "weights": _weights,
    "balance": _balance,
    "by_length": lambda use: _same_rows(use.delivered(shuffle=Shuffle(by_length=use.name)), use),
    "shuffle": lambda use: _same_rows(use.delivered(shuffle=True), use),
    "labels": _labels,
    "labels auto": _labels_auto,
    "Sidecar key": _sidecar,
    "kfold group": lambda use: _kfold(use, group=use.name),
    "kfold stratify": lambda use: _kfold(use, stratify=use.name),
    "dtypes": lambda use: use.is_read(as_floats(use.rows), dtypes={use.name: "float64"}),
    "Standardize": _standardize,
    "pad": _padded,
}


def cell(use_name, use):
    """Return what a cell is: "ok", "" for none, "WRONG", or the sentence of a refusal, without names."""
    try:
        is_right = USES[use_name](use)
    except RayH5Error as error:
        return said_of(getattr(error, "cause", error), use)
    return "" if is_right is None else "ok" if is_right else "WRONG"


def said_of(error, use):
    """Return the sentence of a refusal, without the names, numbers and shapes of the column."""
    said = str(error).replace(repr(use.spec.column), "<column>").replace(str(use.paths), "<files>")
    said = re.sub(rf"'?(?<![\w/]){re.escape(use.name)}(?![\w/])'?", "<column>", said)
    said = re.sub(r"array\(.*\)(?=\)|, None)", "<array>", said, flags=re.DOTALL)
    said = re.sub(r"\((?:[\d?]+, ?)*[\d?]+,?\)", "(...)", said)
    said = re.sub(r"(?<![\w/.])-?\d+(\.\d+)?(?![\w/.]*\.h5)\b", "#", said)
    return f"{type(error).__name__}: {said}"


IN_RAY = [use for use in USES if use not in {"kfold group", "kfold stratify", "Standardize", "pad"}]
"""Uses whose rows Ray reads."""

ADVICE = {
    "any_equal(value)": "any_equal",
    "weights=balance(": "balance",
    "pass labels={<column>: 'auto'}": "labels auto",
}
"""What sentences say to write instead, and the use that it is."""

ROWS_TO_FILTER = ("has no value here", "the value is missing")
"""What refusals of some rows of a column say, and not of the column."""


def table_of(folder, held, part=slice(None), kind=Use, uses=tuple(USES)):
    """Return a part of the cells: (column, use) and what it is."""
    of = {spec: kind(SPECS[spec], folder, held) for spec in SPECS}
    return {(spec, use): cell(use, of[spec]) for spec, use in [(spec, use) for spec in SPECS for use in uses][part]}


def uses_text():
    """Return the table: a line a column, and below it the sentences, which stand in it as numbers."""
    with files() as (folder, held):
        found = table_of(folder, held)
    sentences = [*dict.fromkeys(said for said in found.values() if said not in {"", "ok"})]
    shown = {said: f"[{number}]" for number, said in enumerate(sentences)} | {"": "", "ok": "ok"}
    lines = [" | ".join([spec, *(shown[found[spec, use]] for use in USES)]) for spec in SPECS]
    return "\n".join([" | ".join(["column", *USES]), *lines, *(f"{shown[said]} {said}" for said in sentences)]) + "\n"


def cells_of(text):
    """Return the cells of a table as text."""
    lines = text.splitlines()
    sentences = dict(line.split(" ", 1) for line in lines if line.startswith("["))
    uses = lines[0].split(" | ")[1:]
    rows = (line.split(" | ") for line in lines[1:] if not line.startswith("["))
    return {(row[0], use): sentences.get(said, said) for row in rows for use, said in zip(uses, row[1:], strict=True)}
