"""Random files, row kinds, columns, shuffles and predicates, read as h5py does: ``python -m tests.fuzz.pipelines``."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ray_h5 import Files, Grid, Groups, H5Dataset, RayH5Error, Shuffle, Windows, balance, between, loader, where
from tests.fuzz.campaign import reason_of

Row = dict[str, Any]
Draw = np.random.Generator


class Kind(NamedTuple):
    """A row kind: how files are written, the rows that h5py reads of each, and the options that read the same."""

    write: Callable[[h5py.File, Draw, int], None]
    rows: Callable[[h5py.File, str], list[Row]]
    options: dict[str, Any]


def values_of(rng: Draw, shape: tuple[int, ...], dtype: str) -> Any:
    """Return values: numbers, or texts of some length."""
    if dtype == "text":
        return np.array([f"{n}é"[: n % 4] for n in rng.integers(0, 50, int(np.prod(shape)))], object).reshape(shape)
    return rng.integers(-99, 99, shape).astype(dtype) if dtype != "?" else rng.random(shape) < 0.5


def store(rng: Draw, group: h5py.Group, name: str, values: Any) -> None:
    """Write a dataset in one of the ways that there are."""
    values = np.asarray(values)
    how: dict[str, Any] = {"dtype": h5py.string_dtype()} if values.dtype == object else {}
    if values.ndim and values.size and rng.random() < 0.7:
        filters: list[dict[str, Any]] = [{}, {"compression": "gzip"}, {"shuffle": True}, {"fletcher32": True}]
        how |= filters[rng.integers(len(filters) // (1 + bool(how)))]
        how["chunks"] = tuple(int(rng.integers(1, n + 1)) for n in values.shape)
    group.create_dataset(name, data=values, **how)


def columns(rng: Draw, group: h5py.Group, lead: tuple[int, ...], first: int) -> None:
    """Write the columns of rows: a number of each row, a label, a text, and arrays."""
    ids = first + np.arange(int(np.prod(lead))).reshape(lead)
    same = np.random.default_rng(len(lead))  # types and shapes of rows are those of all files
    store(rng, group, "id", ids)
    store(rng, group, "label", ids % 3)
    store(rng, group, "text", values_of(rng, lead, "text"))
    store(rng, group, "x", values_of(rng, (*lead, *same.integers(1, 4, 2)), str(same.choice(["f4", "i2", "?", ">f8"]))))
    store(rng, group, "y", values_of(rng, (*lead, 2), "u1"))


def by_index(file: Mapping[str, h5py.Dataset], axes: int) -> list[Row]:
    """Return the rows along the leading axes."""
    arrays = {name: file[name][()] for name in file}
    return [{name: array[at] for name, array in arrays.items()} for at in np.ndindex(arrays["id"].shape[:axes])]


def as_groups(file: h5py.File, rng: Draw, number: int) -> None:
    for group in range(int(rng.integers(1, 5))):
        columns(rng, file.create_group(f"g{group}"), (int(rng.integers(1, 6)),), 1000 * number + 100 * group)
        file[f"g{group}/one"] = 1000 * number + 100 * group


def whole_groups(file: h5py.File, path: str) -> list[Row]:  # noqa: ARG001  as the others
    return [{**{name: group[name][()] for name in group}, "key": name.encode()} for name, group in file.items()]


def whole_file(file: h5py.File, path: str) -> list[Row]:
    return [{**{name: file[name][()] for name in file}, "key": Path(path).stem.encode()}]


def windows_of(episodes: list[list[Row]], offsets: list[int], pad: str) -> list[Row]:
    """Return the windows over the rows of episodes: x and id of the steps at offsets."""
    found = []
    for rows in episodes:
        for now in range(len(rows)):
            steps = [now + each for each in offsets]
            if pad == "drop" and not (min(steps) >= 0 and max(steps) < len(rows)):
                continue
            inside = [min(max(each, 0), len(rows) - 1) for each in steps]
            found.append({**rows[now], "x": np.stack([rows[each]["x"] for each in inside])})
    return found


def kind_of(rng: Draw) -> Kind:
    """Draw a row kind."""
    offsets, pad = sorted({int(each) for each in rng.integers(-2, 3, 3)}), str(rng.choice(["edge", "drop"]))
    windows = {"windows": Windows({"x": offsets}, pad=pad)}
    along = lambda file, rng, number: columns(rng, file, (int(rng.integers(1, 30)),), 1000 * number)  # noqa: E731
    both = lambda file, rng, number: columns(rng, file, (int(rng.integers(1, 6)), 4), 1000 * number)  # noqa: E731
    kinds = [
        Kind(along, lambda file, _: by_index(file, 1), {}),
        Kind(along, lambda file, _: windows_of([by_index(file, 1)], offsets, pad), windows),
        Kind(along, whole_file, {"rows": Files(key="key")}),
        Kind(both, lambda file, _: by_index(file, 2), {"rows": Grid(2)}),
        Kind(as_groups, whole_groups, {"rows": Groups("g*", key="key")}),
        Kind(
            as_groups,
            lambda file, _: windows_of([steps_of(group) for group in file.values()], offsets, pad),
            {"rows": Groups("g*"), **windows},
        ),
    ]
    return kinds[rng.integers(len(kinds))]


def steps_of(group: h5py.Group) -> list[Row]:
    """Return the rows of an episode; `one` is the same for all."""
    rows = by_index({name: group[name] for name in group if name != "one"}, 1)
    return [{**row, "one": group["one"][()]} for row in rows]


def equal(found: Any, expected: Any) -> bool:
    """Return whether a value of a sample is what h5py reads."""
    if isinstance(found, (str, list)):
        plain = expected.tolist() if isinstance(expected, np.ndarray) else expected
        texts = [each.decode() for each in plain] if isinstance(plain, list) else plain.decode()
        return found == texts
    expected = np.asarray(expected)
    return found.numpy().tobytes() == expected.astype(expected.dtype.newbyteorder("=")).tobytes()


def number_of(row: Row, name: str = "id") -> int:
    """Return the number of a row, or another value of it; axes of one are no matter."""
    return int(np.asarray(row[name]).reshape(-1)[0])


def move(rng: Draw, path: Path, names: list[str]) -> None:
    """Move datasets of these names to a file of the same groups in another folder, in another order."""
    with h5py.File(path, "a") as file, h5py.File(path.parent.parent / "beside" / path.name, "w") as other:
        there: list[str] = []
        file.visititems(lambda name, each: there.append(name) if isinstance(each, h5py.Dataset) else None)
        for name in rng.permutation([each for each in there if each.rsplit("/")[-1] in names]):
            file.copy(name, other.require_group(name.rpartition("/")[0] or "/"))
            del file[name]


def pipeline(rng: Draw, folder: Path) -> str:
    """Read one pipeline; return what it was. Raise for rows that are lost, doubled or other ones."""
    kind, expected, files = kind_of(rng), {}, int(rng.integers(1, 4))
    (folder / "files").mkdir()
    (folder / "beside").mkdir()
    beside = rng.permutation(["text", "x", "y"])[: rng.integers(1, 4)].tolist() if rng.random() < 0.3 else []
    for number in range(files):
        path = folder / "files" / f"{number}.h5"
        with h5py.File(path, "w") as file:
            kind.write(file, rng, number)
        with h5py.File(path) as file:
            expected |= {number_of(row): row for row in kind.rows(file, str(path))}
        if beside:
            move(rng, path, beside)
    others = ["label", "text", "x", "y", *(["one"] if rng.random() < 0.2 else [])]
    names = ["id", *rng.permutation(others)[: rng.integers(0, 4)].tolist()]
    wanted = rng.integers(0, 3, 2).tolist()
    rules: list[tuple[Any, Callable[[Row], bool]]] = [
        (None, lambda row: True),  # noqa: ARG005
        (where(label=wanted), lambda row: number_of(row, "label") in wanted),
        (where(id=between(50, 1200)), lambda row: 50 <= number_of(row) <= 1200),
        (where(text=["1", "2é"]), lambda row: row["text"] in (b"1", "2é".encode())),
    ]
    predicate, passes = rules[rng.integers(len(rules))]
    shuffles = [False, True, "chunks", "files", Shuffle("rows", seed=3), Shuffle("chunks", window_rows=8)]
    shuffles += [Shuffle(weights=balance("label"), rows_per_epoch=20), Shuffle(by_length="x")]
    shuffle, ranks, size = shuffles[rng.integers(len(shuffles))], int(rng.integers(1, 4)), int(rng.integers(1, 9))
    said = f"{kind.options} {names} {predicate} {shuffle} {ranks} {beside}"
    zipped: dict[str, Any] = {"zip_files": folder / "beside"} if beside else {}
    dataset = H5Dataset(folder / "files", names, predicate, **kind.options, **zipped)
    expected = {number: row for number, row in expected.items() if passes(row)}
    seen: list[int] = []
    for rank in range(ranks):
        batches = loader(dataset, size, shuffle=shuffle, rank=rank, world_size=ranks,
                         threads=int(rng.integers(3)), collate_fn=list)  # fmt: skip
        for row in itertools.chain.from_iterable(batches):
            seen.append(number_of(row))
            for name in names:
                assert equal(row[name], expected[seen[-1]][name]), f"{said}: row {seen[-1]}, {name}: {row[name]}"
    if not getattr(shuffle, "weights", None):
        assert set(seen) == set(expected), f"{said}: {set(seen) ^ set(expected)}"
        assert len(seen) < len(expected) + ranks, f"{said}: rows come again"
    return said


def run(seed: int, seconds: float, most: int) -> tuple[Counter[str], list[str]]:
    """Read pipelines; return how many were read, those refused by reason, and what is wrong."""
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    start = time.monotonic()
    for number in range(most):
        if time.monotonic() - start > seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            try:
                pipeline(np.random.default_rng([seed, number]), Path(folder))
                counts["read"] += 1
            except RayH5Error as exc:
                reason = reason_of(f"{type(exc).__name__}: {exc}")
                counts[reason] += 1
                wrong += [] if reason else [f"{seed}:{number}: refused without a reason: {exc!r}"]
            except Exception as exc:  # noqa: BLE001  it is what is looked for
                wrong.append(f"{seed}:{number}: {type(exc).__name__}: {exc}")
                print("FINDING", wrong[-1], flush=True)
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.pipelines", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", type=int, help="one pipeline, as a finding names it after its seed")
    given = parser.parse_args()
    if given.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(pipeline(np.random.default_rng([given.seed, given.only]), Path(folder)))
        return 0
    counts, wrong = run(given.seed, given.seconds, sys.maxsize)
    print(*(f"{count:6} {reason}" for reason, count in counts.most_common()), sep="\n")
    print(f"{sum(counts.values())} pipelines, {len(wrong)} findings")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
