"""Writes rows of all files, chosen and ordered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc

from ray_h5.errors import OptionError, PredicateError, UnsupportedColumnError
from ray_h5.index.facts.answers import readable
from ray_h5.index.file_options import FileOptions
from ray_h5.index.row_index import RowIndex
from ray_h5.index.select_rows import select
from ray_h5.messages import few
from ray_h5.options import as_integer
from ray_h5.order.read_plan import ReadPlan, make_plan
from ray_h5.writing.file_arrays import Form, TableWriter
from ray_h5.writing.layouts import Layout
from ray_h5.writing.output import OutputFile
from ray_h5.writing.repack.beside_rows import Rest, enum_dtype, texts_of_columns
from ray_h5.writing.repack.predicate_text import parse_where
from ray_h5.writing.repack.result import Repacked
from ray_h5.writing.repack.row_batches import Batch, Rows, cut, shuffled
from ray_h5.writing.repack.target import Target
from ray_h5.writing.repack.work import Progress, Work

_OF_CF = ("_FillValue", "missing_value", "scale_factor", "add_offset", "units", "calendar", "_Unsigned", "valid_range")
_DEFAULTS = {
    "rows": None, "windows": None, "sidecar": None, "attrs": (), "decode_cf": False, "axes": "stored", "dtypes": None,
    "labels": None, "zip_files": None, "columns": None, "group": "/",
}  # fmt: skip
"""Options of `Source` that say what rows are."""


@dataclass(frozen=True, slots=True)
class RowChoice:
    """What says which rows are written, and in which order and files.

    Attributes
    ----------
    where : str or expression, optional
        Which rows.
    seed : int, optional
        That of their order; None for path order.
    rows_per_file, files : int, optional
        The rows of an output, or the number of outputs.
    options : frozenset of str
        The options of `Source` that were passed and say what rows are.
    """

    where: str | pc.Expression | None
    seed: int | None
    rows_per_file: int | None
    files: int | None
    options: frozenset[str]

    @classmethod
    def of(
        cls,
        where: str | pc.Expression | None,
        shuffle_rows: int | None,
        rows_per_file: int | None,
        files: int | None,
        options: Mapping[str, Any],
    ) -> RowChoice:
        """Return the choice that the options of `repack` make."""
        if rows_per_file is not None and files is not None:
            raise OptionError(f"rows_per_file={rows_per_file!r} and files={files!r}: expected one of them")
        return cls(
            where,
            None if shuffle_rows is None else as_integer("shuffle_rows", shuffle_rows, 0),
            None if rows_per_file is None else as_integer("rows_per_file", rows_per_file, 1),
            None if files is None else as_integer("files", files, 1),
            frozenset(name for name, default in _DEFAULTS.items() if options.get(name, default) != default),
        )

    @property
    def is_by_input(self) -> bool:
        """Whether there is an output for each input, with its rows in order."""
        return self.seed is None and self.rows_per_file is None and self.files is None

    @property
    def is_any(self) -> bool:
        """Whether rows are chosen or ordered. If not, files are copied."""
        return bool(self.options) or self.where is not None or not self.is_by_input


class RowWork(Work):
    """Rows of all files, chosen and ordered."""

    def __init__(
        self, files: FileOptions, target: Target, layout: Layout, drop: bool, threads: int, choice: RowChoice
    ) -> None:
        super().__init__(files, target, layout, drop, threads)
        if layout.codec == "keep":
            raise OptionError("codec='keep': rows that are chosen or ordered are encoded again; expected a codec")
        self._choice, self._seed, self._chosen = choice, choice.seed, choice.options
        self._index = files.index()
        self._plan = self._planned(parse_where(choice.where) if isinstance(choice.where, str) else choice.where)
        self._by_input = choice.is_by_input and not target.is_file
        self._sizes = self._sizes_of(choice.rows_per_file, choice.files or (1 if target.is_file else None))
        self._rows = Rows(self._plan, self._forms(), self._index.chunk_group_rows if self._index.scope.by_axis else 1)

    def _planned(self, predicate: pc.Expression | None) -> ReadPlan:
        index: RowIndex = self._index
        selection = None
        if predicate is not None:
            from ray_h5.predicates.evaluate import as_expression

            selection = select(index, index.delivered, as_expression(predicate))
            if not len(selection):
                raise PredicateError(f"where={self._choice.where!r}: none of {index.num_rows} rows passes")
        delivered = index.outputs
        return make_plan(index, [delivered[name] for name in index.names], selection)

    def _sizes_of(self, per_file: int | None, count: int | None) -> list[int]:
        """Return the rows of each output."""
        total, starts = self._plan.num_rows, self._plan.files.starts
        if self._by_input:
            chosen = starts if self._plan.selection is None else np.searchsorted(self._plan.selection, starts)
            return [int(n) for n in np.diff(chosen)]
        if per_file is None:
            per_file = -(-total // (count or len(self._files.paths)))
        return [min(per_file, total - first) for first in range(0, total, per_file)] if total else [0]

    def names(self) -> list[str]:
        if self._by_input:
            paths = self._plan.files.all_paths()
            by_path = dict(zip(self._files.paths, self._input_names(), strict=True))
            return [by_path[path] for path, size in zip(paths, self._sizes, strict=True) if size]
        return [f"part-{number:05d}.h5" for number in range(len(self._sizes))]

    def _forms(self) -> dict[str, Form]:
        """Return what columns are written as: with the types that the files have for them, where these are alike."""
        forms = {spec.name: Form.of(spec) for spec in self._plan.columns}
        paths = self._plan.files.all_paths()
        if not self._index.scope.by_axis or not self._on_disk(paths) or self._chosen & {"axes", "decode_cf"}:
            return forms
        specs = {spec.name: spec for spec in self._plan.columns}
        of_text = [name for name, form in forms.items() if form.kind == "text" and not specs[name].as_bytes]
        group = self._files.scope.group
        texts = [texts_of_columns(path, of_text, group) for path in paths] if of_text else [{}]
        for name in of_text:
            found = [each.get(name) for each in texts]
            if None not in found:
                longest = max(cast("list[np.dtype]", found), key=lambda each: each.itemsize)
                forms[name] = Form("plain", longest, forms[name].shape)
        with self._plan.open(0) as reader:
            plain = [name for name, form in forms.items() if form.kind == "plain" and name not in self._joined]
            for name, layout in reader.find(plain).items():
                form, spec = forms[name], specs[name]
                if name in self._plan.cast or layout.kind != spec.kind:
                    continue
                values = dict(layout.enum)
                if values and spec.kind == "number" and not form.dtype.names:
                    form = replace(form, dtype=enum_dtype(values, form.dtype))
                forms[name] = (
                    form if layout.fill is None or layout.fill.dtype.names else replace(form, fill=layout.fill)
                )
        return forms

    @property
    def _joined(self) -> Mapping[str, Any]:
        return {} if self._plan.joined is None else self._plan.joined.specs

    def survey(self) -> None:
        for sources in self._sources() if self._by_input else [list(self._plan.files.all_paths())]:
            self._lost(sources)
        if self._dropped and not self._drop:
            raise UnsupportedColumnError(
                f"{self._plan.files.path(0)}: rows that are chosen or ordered cannot keep {few(self._dropped)}. Pass "
                "drop=True to leave it out."
            )

    def _sources(self) -> list[list[str]]:
        return [[path] for path, size in zip(self._plan.files.all_paths(), self._sizes, strict=True) if size]

    def _lost(self, sources: list[str]) -> None:
        for what in self._rest(sources, None):
            if what not in self._dropped:
                self._dropped.append(what)

    def _rest(self, sources: list[str], file: OutputFile | None) -> list[str]:
        """Copy what files hold beside the rows; return what is lost."""
        if len(self._on_disk(sources)) < len(sources):
            return ["attributes of files in a store"] if file is None else []
        forms = self._rows.forms
        columns = {
            name: name if form.kind in {"plain", "text"} and name not in self._joined else ""
            for name, form in forms.items()
        }
        of_groups = getattr(self._files.scope.rows, "attrs", ())
        left_out = [*self._files.attrs.keys(), *self._files.attrs.values(), *of_groups]  # they are columns
        left_out += _OF_CF if "decode_cf" in self._chosen else ()
        rest = Rest(sources, columns, self._files.scope.group, ("encoding-type", "encoding-version", *left_out))
        by_axis = self._index.scope.by_axis and "axes" not in self._chosen
        if "columns" in self._chosen:  # who names columns leaves the rest
            rest.only_columns = True
        elif len(sources) == 1:
            rest.unread = self._unread(sources[0])
        return rest.keep(None if file is None else file.file, attributes_alone=not by_axis)

    def _unread(self, path: str) -> dict[str, int]:
        """Return what has rows in a file and is no column, and how many rows its columns have."""
        number = list(self._plan.files.all_paths()).index(path)
        with self._plan.open(number) as reader:
            rows = int(np.diff(self._plan.files.starts)[number])
            return dict.fromkeys((name for name, _ in readable(reader.layout)[1]), rows)

    def run(self, kept: Sequence[str], verify: bool, progress: Progress) -> None:
        total, done = self._plan.num_rows, 0
        self._before = sum(self._state(path).size for path in self._plan.files.all_paths())

        def written(file: OutputFile, batches: Iterator[Batch], sources: list[str]) -> None:
            nonlocal done
            table = TableWriter(file, self._rows.forms, self._layout)
            for columns, count in batches:
                table.append(columns, count)
                done += count
                progress(done, total)
            table.finish()
            file.finish()
            self._rest(sources, file)
            self._check_unchanged({path: self._plan.state(numbers[path]) for path in sources})

        everything = list(self._plan.files.all_paths())
        numbers = {path: number for number, path in enumerate(everything)}
        for name, batches, sources in self._outputs(everything):
            if name in kept:
                if not self._by_input:
                    done += sum(count for _, count in batches)  # they lie before those of the next one
                self._after += Path(self._target.place(name)).stat().st_size
                continue
            check = (lambda _: None) if verify else None
            self._write(name, partial(written, batches=batches, sources=sources), check)

    def _outputs(self, everything: list[str]) -> Iterator[tuple[str, Iterator[Batch], list[str]]]:
        if self._by_input:
            starts = self._plan.files.starts.tolist()
            filled = [file for file, size in enumerate(self._sizes) if size]
            for file, name, sources in zip(filled, self.names(), self._sources(), strict=True):
                yield name, self._rows.of_files(starts[file], starts[file + 1]), sources
            return
        if self._seed is None:
            batches = self._rows.all()
        else:
            batches = shuffled(self._rows, self._seed, self._target.temporary, self._threads)
        for name, part in zip(self.names(), cut(batches, self._sizes), strict=True):
            yield name, part, everything

    def _further(self) -> Any:
        return str(self._choice.where), self._seed, self._sizes

    def result(self) -> Repacked:
        return Repacked([], [], self._plan.num_rows, self._before, self._after, dropped=tuple(self._dropped))
