"""Windows over files, each of which is a step of an episode: as NumPy stacks them."""

import os
import pickle
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ray_h5
from ray_h5 import Files, RowReader, Shuffle, Sidecar, Windows, kfold, where
from ray_h5.cli import main
from ray_h5.errors import OptionError, RayH5Error, SchemaMismatchError, UnknownColumnError
from ray_h5.rows.row_view import RowView
from ray_h5.torch_data import H5Dataset, loader
from tests.kit.files import save

FRAMES = {"1999": 5, "2000": 3, "2010": 12}
LAST_THREE = Windows({"image": range(-2, 1), "later": ("wind", [1, 2])}, episode="folder")


def frame(year, number):
    return np.full((4, 6), int(year) * 100 + number, "f4")


@pytest.fixture
def typhoons(tmp_path):
    """A folder a typhoon, a file a frame: t_2 is before t_10."""
    for year, count in FRAMES.items():
        (tmp_path / "frames" / year).mkdir(parents=True)
        for number in range(1, count + 1):
            columns = {"image": frame(year, number), "wind": float(number), "name": f"{year}-{number}"}
            save(tmp_path / "frames" / year / f"t_{number}.h5", columns)
    return tmp_path / "frames"


@given(
    offsets=st.lists(st.integers(-4, 4), min_size=1, max_size=4),
    pad=st.tuples(*[st.sampled_from(["edge", "zero", "drop"])] * 2),
    stride=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=3),
)
def test_windows_equal_numpy(tmp_path_factory, offsets, pad, stride, lengths):
    folder = tmp_path_factory.mktemp("frames")
    for episode, length in enumerate(lengths):
        (folder / f"e{episode}").mkdir()
        for step in range(length):
            save(folder / f"e{episode}" / f"{step}.h5", {"x": np.array([episode, step]), "t": step})
    windows = Windows({"x": offsets}, pad=pad, stride=stride, episode="folder")
    expected = []
    for episode, length in enumerate(lengths):
        first = max(0, -min(offsets)) if pad[0] == "drop" else 0
        stop = length - max(0, *offsets) if pad[1] == "drop" else length
        for step in range(first, stop, stride):
            at = [step + offset for offset in offsets]
            is_blank = [(n < 0 and pad[0] == "zero") or (n >= length and pad[1] == "zero") for n in at]
            inside = [min(max(n, 0), length - 1) for n in at]
            values = [[0, 0] if blank else [episode, n] for n, blank in zip(inside, is_blank, strict=True)]
            expected.append((step, values, [not 0 <= n < length for n in at]))
    if not expected:
        with pytest.raises((RayH5Error, IndexError)):
            H5Dataset(folder, rows=Files(), windows=windows)[0]
        return
    rows = [*H5Dataset(folder, rows=Files(), windows=windows)]
    marks = [row["x_is_pad"].tolist() if "x_is_pad" in row else [False] * len(offsets) for row in rows]
    found = zip((int(row["t"]) for row in rows), (row["x"].tolist() for row in rows), marks, strict=True)
    assert [*found] == expected


def test_they_compose(typhoons, tmp_path):
    options = {"rows": Files(key="frame"), "windows": LAST_THREE}
    for _ in range(2):  # the second reads the index file
        rows = H5Dataset(typhoons, index_dir=tmp_path / "index", **options)
        assert len(rows) == 20
        assert [row["frame"] for row in rows][8:11] == ["2010/t_1", "2010/t_2", "2010/t_3"]
    tenth = rows[17]
    assert (tenth["frame"], tenth["name"], tenth["later"].tolist()) == ("2010/t_10", "2010-10", [11.0, 12.0])
    assert tenth["image"].tolist() == [frame("2010", n).tolist() for n in (8, 9, 10)]
    strong = H5Dataset(typhoons, ["image", "frame"], where(wind=[5.0, 12.0]), dtypes={"image": "float64"}, **options)
    assert strong[0]["image"].dtype == torch.float64
    assert [row["frame"] for row in strong] == ["1999/t_5", "2010/t_5", "2010/t_12"]
    folds = kfold(typhoons, 3, group="episode", stratify=None, **options)
    held = [{row["frame"][:4] for row in H5Dataset(typhoons, ["frame"], own, **options)} for _, own in folds]
    assert sorted(map(sorted, held)) == [["1999"], ["2000"], ["2010"]]
    options |= {"columns": ["image", "frame"], "shuffle": Shuffle(seed=3)}
    batches, resumed = loader(typhoons, 3, **options), loader(typhoons, 3, **options)
    epoch = iter(batches)
    next(epoch)
    resumed.load_state_dict(pickle.loads(pickle.dumps(batches.state_dict())))
    assert [batch["frame"] for batch in resumed] == [batch["frame"] for batch in epoch]
    (typhoons / "1999" / "t_4.h5").write_bytes(b"cut short")
    rest = H5Dataset(
        typhoons,
        ["wind"],
        ignore_unreadable_files=True,
        rows=Files(),
        windows=Windows({"wind": [-1, 0]}, episode="folder"),
    )
    assert [row["wind"].tolist() for row in rest][2:5] == [[2.0, 3.0], [3.0, 5.0], [1.0, 1.0]]
    of_table = Windows({"wind": [-1, 0]}, episode={f"t_{n}": n % 2 for n in range(13)})
    flat = H5Dataset(typhoons / "2010", rows=Files(), windows=of_table)
    assert [row["wind"].tolist() for row in flat][:4] == [[1.0, 1.0], [2.0, 2.0], [1.0, 3.0], [2.0, 4.0]]


def test_each_file_of_a_call_is_read_once(typhoons, monkeypatch):
    read, planned = list[int](), RowView.planned

    def counted(self, *args, **how):
        read.append(int(Path(self.path).stem[2:]))
        return planned(self, *args, **how)

    monkeypatch.setattr(RowView, "planned", counted)
    windows = Windows({"image": range(-2, 1), "later": ("wind", [1, 2]), "wind": [0, -1]}, pad="zero", episode="folder")
    options = {"rows": Files(), "windows": windows, "dtypes": {"later": "i8"}}
    columns = ["image", "later", "wind", "image_is_pad"]
    rows = H5Dataset(typhoons, columns, kept_bytes=0, **options)
    batch = rows[np.array([19, 8, 18, 9, 19])]  # the files 12, 1, 11, 2 and 12 of 2010
    # The two types of `wind` are apart, and what marks padding is in no file.
    assert sorted(read) == sorted([1, 2, 3, 4, 9, 10, 11, 12, *(1, 2, 10, 11, 12)])
    steps = np.array([12, 1, 11, 2, 12])[:, None] + np.arange(-2, 1)
    images = np.array([[frame("2010", n) for n in of] for of in steps])
    assert np.array_equal(batch["image"], np.where((steps < 1)[:, :, None, None], 0, images))
    assert np.array_equal(batch["image_is_pad"], steps < 1)
    assert batch["wind"].tolist() == [[12, 11], [1, 0], [11, 10], [2, 1], [12, 11]]
    assert batch["later"].tolist() == [[0, 0], [2, 3], [12, 0], [3, 4], [0, 0]]
    assert batch["later"].dtype == torch.int64
    read.clear()
    kept = loader(H5Dataset(typhoons, columns, **options), 3, shuffle=Shuffle(seed=0), drop_last=False, threads=0)
    for _ in range(2):  # in the first epoch, each file once a type; then none
        assert sum(len(found["image"]) for found in kept) == 20
    assert len(read) == 2 * 20


@pytest.mark.parametrize("of", ["table", "attribute", "dataset"])
def test_episodes_are_values_of_a_column(typhoons, tmp_path, of):
    paths = sorted(typhoons.rglob("*.h5"), key=lambda path: (path.parent.name, int(path.stem[2:])))
    storm_of = {path: int(path.stem[2:]) % 2 * 10 + (path.parent.name == "2010") for path in paths}
    options = {"rows": Files(key="frame"), "windows": Windows({"wind": [-1, 0]}, episode="storm")}
    for path, storm in storm_of.items() if of != "table" else ():
        with h5py.File(path, "r+") as file:
            if of == "attribute":
                file.attrs["storm"] = storm
            else:
                file["storm"] = storm
    if of == "attribute":
        options["attrs"] = ["storm"]
    if of == "table":
        lines = [f"{path.parent.name}/{path.name},s{storm}" for path, storm in storm_of.items()]
        (tmp_path / "t.csv").write_text("\n".join(["frame,storm", *lines[::-1]]))
        options["sidecar"] = Sidecar(tmp_path / "t.csv", on="path", key="frame")
    expected, last = [], {}
    for path, storm in storm_of.items():
        wind = float(path.stem[2:])
        expected.append([last.setdefault(storm, wind), wind])
        last[storm] = wind
    for columns in (None, ["wind", "storm"]):
        rows = [*H5Dataset(typhoons, columns, **options)]
        assert [row["wind"].tolist() for row in rows] == expected
        assert [int(row["storm"][1:] if of == "table" else row["storm"]) for row in rows] == [*storm_of.values()]
    folds = kfold(typhoons, 2, group="episode", **options)
    held = [{row["frame"] for row in H5Dataset(typhoons, None, own, **options)} for _, own in folds]
    assert not held[0] & held[1]


def test_files_that_a_table_leaves_out_are_steps_of_no_other(typhoons, tmp_path):
    (tmp_path / "t.csv").write_text("path,storm\n" + "".join(f"t_{n},a\n" for n in (1, 2, 4, 7)))
    windows = Windows({"wind": [-1, 0]}, episode="storm")
    table = Sidecar(tmp_path / "t.csv", on="path", missing="drop")
    rows = H5Dataset(typhoons / "2010", ["wind"], rows=Files(), windows=windows, sidecar=table)
    assert [row["wind"].tolist() for row in rows] == [[1.0, 1.0], [1.0, 2.0], [2.0, 4.0], [4.0, 7.0]]
    with pytest.raises(OptionError, match=r"t_3\.h5.*episode='storm' has no value for this file"):
        H5Dataset(typhoons / "2010", rows=Files(), windows=windows, sidecar=replace(table, missing="null"))
    with pytest.raises(OptionError, match=r"episode='image' .*one value a file.*leave episode= out"):
        H5Dataset(typhoons, rows=Files(), windows=Windows({"wind": [0]}, episode="image"))


def test_episodes_of_files_that_folders_tell_apart(typhoons):
    names = [path.relative_to(typhoons).as_posix() for path in typhoons.rglob("*.h5")]
    for cut in (0, len(".h5")):  # `t_2` of two folders is told apart by them
        of_folders = Windows({"wind": [-1, 0]}, episode={name[: len(name) - cut]: name[:4] for name in names})
        found = H5Dataset(typhoons, ["wind"], rows=Files(), windows=of_folders)
        assert [row["wind"].tolist() for row in found] == [
            [float(max(number - 1, 1)), float(number)] for count in FRAMES.values() for number in range(1, count + 1)
        ]


@pytest.mark.usefixtures("ray_local")
def test_ray(typhoons):
    rows = ray_h5.read_h5(str(typhoons), columns=["image", "frame"], rows=Files(key="frame"), windows=LAST_THREE)
    found = {row["frame"]: row["image"] for row in rows.take_all()}
    assert len(found) == 20
    assert np.array_equal(found["2010/t_10"], [frame("2010", n) for n in (8, 9, 10)])


def test_the_call_is_printed(tmp_path, capsys):
    for year in ("1999", "2000"):
        (tmp_path / year).mkdir()
        for number in range(16):
            save(tmp_path / year / f"t_{number}.h5", {"image": np.zeros((40, 40), "f4")})
    main(["inspect", str(tmp_path)])
    said = capsys.readouterr().out
    assert (
        "write read_h5(paths, rows=ray_h5.Files()); if the files of a folder follow each other in time, add win" in said
    )
    windows = eval(said.partition("in time, add windows=")[2].partition(": see docs")[0], {"ray_h5": ray_h5})
    assert len(H5Dataset(tmp_path, rows=Files(), windows=windows)) == 32


def test_what_is_refused(typhoons):
    path = str(typhoons / "2000" / "t_2.h5")
    with pytest.raises(OptionError, match="are of several files, and this is one of them alone"):
        RowReader(path, rows=Files(), windows=LAST_THREE).read(["image"])
    with pytest.raises(OptionError, match=r"has no entry for .*t_2\.h5"):
        H5Dataset(path, rows=Files(), windows=Windows({"wind": [0]}, episode={"other": 1}))
    with pytest.raises(
        OptionError, match=r"one entry, 't_1', for .*/t_1\.h5 and for .* with folders, such as '2.*/t_1"
    ):
        H5Dataset(typhoons, rows=Files(), windows=Windows({"wind": [0]}, episode={f"t_{n}": 1 for n in range(99)}))
    with pytest.raises(UnknownColumnError, match=r"no 'folder' .* as an episode, pass rows=Files\(\)"):
        H5Dataset(path, ["image"], windows=Windows({"image": [0]}, episode="folder"))
    with pytest.raises(OptionError, match="is for rows=Files"):
        H5Dataset(path, windows=Windows({"image": [0]}, episode={"t_2": 1}))
    with pytest.raises(OptionError, match=r"per_step=.*: with a file a step"):
        H5Dataset(path, rows=Files(), windows=Windows({"image": [0]}, episode="folder", per_step=["wind"]))
    rows = H5Dataset(typhoons, ["image", "wind"], rows=Files(), windows=LAST_THREE)
    rows[7]
    os.remove(path)
    save(path, {"image": frame("2000", 9), "wind": 9.0, "name": "a file that has changed"})
    with pytest.raises(RayH5Error, match=r"t_2\.h5.* changed"):
        rows[7]
    save(path, {"image": np.zeros((2, 2), "f4"), "wind": 9.0, "name": "x"})
    with pytest.raises(SchemaMismatchError, match=r"image"):
        H5Dataset(typhoons, ["image"], rows=Files(), windows=LAST_THREE)[7]
