import datetime as dt
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch

from ray_h5 import plots
from ray_h5.errors import MissingDependencyError, OptionError, SchemaMismatchError, UnsupportedColumnError

pytest.importorskip("matplotlib")
RNG = np.random.default_rng(0)


def rendered(figure, tmp_path):
    path = tmp_path / "figure.png"
    figure.savefig(path, dpi=40)
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def titles(figure):
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


@pytest.mark.slow
def test_a_row_has_a_panel_an_array_and_words_for_the_rest(tmp_path):
    row = {
        "fhr": RNG.standard_normal(480),
        "fhr_st": RNG.standard_normal((43, 300)),
        "obs/image": RNG.integers(0, 256, (3, 16, 16), dtype=np.uint8),
        "stack": RNG.standard_normal((2, 20, 30)),
        "empty": np.empty((0,)),
        "epoch": np.float32(3),
        "guid": "p" * 99,
    }
    figure = plots.plot_row(row, title="row 7")
    assert rendered(figure, tmp_path)
    assert titles(figure)[:2] == ["fhr  (480,) float64", "fhr_st  (43, 300) float64"]
    assert len(titles(figure)) == 5
    heading = figure.get_suptitle()
    assert "row 7" in heading
    assert "epoch = 3.0" in heading
    assert "p" * 50 not in heading
    assert rendered(plots.plot_row({"label": 3}), tmp_path)
    with pytest.raises(OptionError, match="no columns"):
        plots.plot_row({})


@pytest.mark.parametrize("shape", [(300,), (43, 300), (1, 224, 313)])
def test_before_and_after_share_a_scale(tmp_path, shape):
    before = RNG.standard_normal(shape).astype("f4")
    after = before * 2
    figure = plots.plot_augmentation(before, after, column="fhr_st")
    assert rendered(figure, tmp_path)
    assert titles(figure) == ["before", "after", "after - before"]
    if len(shape) > 1:
        first, second, _ = (axes.images[0] for axes in figure.axes if axes.images)
        assert first.get_clim() == second.get_clim()
    with pytest.raises(SchemaMismatchError, match="expected the same"):
        plots.plot_augmentation(before, after[:0])


def test_the_spread_of_an_order_beside_an_exact_shuffle(tmp_path):
    files = np.repeat(np.arange(8), 64)
    figure = plots.plot_spread({"in order": files, "shuffled": RNG.permutation(files)}, 32)
    assert rendered(figure, tmp_path)
    assert titles(figure) == ["in order", "shuffled", "exact shuffle"]
    curves = {line.get_label().split(",")[0]: line.get_ydata() for axes in figure.axes for line in axes.lines}
    assert np.allclose(curves["in order"], 7 / 8)
    assert curves["exact shuffle"].mean() < 0.3
    counts = next(axes.images[0].get_array() for axes in figure.axes if axes.images)
    assert counts.shape == (8, 16)
    assert counts.sum() == 512


def test_the_padding_of_orders_of_lengths(tmp_path):
    lengths = RNG.integers(1, 400, 640)
    orders = {"by rows": lengths, "by length": np.sort(lengths), "zero": np.zeros(640, int)}
    figure = plots.plot_spread(orders, 32, what="length", are_lengths=True)
    assert rendered(figure, tmp_path)
    curves = {line.get_label().split(",")[0]: line.get_ydata() for axes in figure.axes for line in axes.lines}
    expected = 1 - lengths.reshape(-1, 32).mean(axis=1) / lengths.reshape(-1, 32).max(axis=1)
    np.testing.assert_allclose(curves["by rows"], expected)
    assert curves["by length"].mean() < 0.1 < 0.3 < curves["by rows"].mean()
    assert not curves["zero"].any()
    assert "padding" in [axes.get_ylabel() for axes in figure.axes]
    for wrong, said in ((["a", "b"], "found a"), ([1, -2], "found -2"), ([1, np.nan], "found nan")):
        with pytest.raises(OptionError, match=f"orders: 'x': expected lengths.*{said}"):
            plots.plot_spread({"x": wrong}, 1, are_lengths=True)


@pytest.mark.parametrize(("kinds", "rows", "batch_size"), [(3, 90, 7), (150, 640, 8), (40_000, 40_000, 64)])
def test_a_spread_is_counted_without_a_table_of_batches_and_values(kinds, rows, batch_size):
    order = RNG.integers(0, kinds, rows) * 3
    plots.plot_spread({"x": order[:batch_size]}, batch_size)
    tracemalloc.start()
    figure = plots.plot_spread({"x": order}, batch_size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < max(100 * order.nbytes, 10 << 20)
    values, whole = np.unique(order, return_inverse=True), len(order) // batch_size * batch_size
    batches = values[1][:whole].reshape(-1, batch_size)
    counts = np.stack([np.bincount(batch, minlength=len(values[0])) for batch in batches])
    expected = np.abs(counts / batch_size - counts.sum(axis=0) / whole).sum(axis=1) / 2
    curve = next(line for axes in figure.axes for line in axes.lines if line.get_label().startswith("x"))
    np.testing.assert_allclose(curve.get_ydata(), expected, atol=1e-12)
    starts = np.unique(np.linspace(0, len(values[0]), 64, endpoint=False).astype(int))
    image = next(axes.images[0].get_array() for axes in figure.axes if axes.images)
    assert np.array_equal(image, np.add.reduceat(counts, starts, axis=1).T)


def test_a_spread_over_many_files_or_names(tmp_path):
    figure = plots.plot_spread({"x": np.repeat(np.arange(1000), 4)}, 50)
    assert next(axes.images[0].get_array() for axes in figure.axes if axes.images).shape == (64, 80)
    assert rendered(plots.plot_spread({"x": np.array(["a", "b"] * 50)}, 10, what="label"), tmp_path)
    for orders, batch_size in (({}, 3), ({"x": [1, 2]}, 3), ({"x": [1, 2]}, 0)):
        with pytest.raises(OptionError, match=r"orders|batch_size"):
            plots.plot_spread(orders, batch_size)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64"])
def test_tensors(dtype, tmp_path):
    tensor = torch.arange(72).reshape(8, 9).to(getattr(torch, dtype))
    if tensor.is_floating_point():
        tensor.requires_grad_()
    assert rendered(plots.plot_row({"x": tensor}), tmp_path)
    assert rendered(plots.plot_augmentation(tensor, tensor + 1), tmp_path)
    assert rendered(plots.plot_spread({"x": tensor.detach().ravel()}, 8), tmp_path)


def test_what_cannot_be_drawn():
    with pytest.raises(UnsupportedColumnError, match="expected real numbers"):
        plots.plot_augmentation(["a"], ["b"])
    with pytest.raises(OptionError, match="orders: expected"):
        plots.plot_spread(np.arange(3), 1)
    with pytest.raises(OptionError, match=r"batch_size=1\.5: expected an integer"):
        plots.plot_spread({"x": np.arange(3)}, 1.5)
    with pytest.raises(OptionError, match="'exact shuffle'"):
        plots.plot_spread({"exact shuffle": np.arange(3)}, 1)
    with pytest.raises(OptionError, match="no columns"):
        plots.plot_row(np.zeros(3))
    with pytest.raises(OptionError, match="seed=-1"):
        plots.plot_spread({"p": np.arange(100) % 6}, 50, seed=-1)
    for figures in ([1], {"ray": 5}, {"ray": ["y"]}):
        for name, given in (("rows_per_second", (figures, {})), ("waiting", ({}, figures))):
            with pytest.raises(OptionError, match=f"{name}=.*: expected") as raised:
                plots.plot_epochs(*given)
            assert raised.value.option == name


def test_names_are_drawn_as_they_are_written(tmp_path):
    name = "_x_$^$"
    names = np.array([name, "b"] * 20)
    for figure in (
        plots.plot_row({name: np.arange(9), "note": name}, title=name),
        plots.plot_augmentation(np.zeros((4, 5)), np.ones((4, 5)), column=name),
        plots.plot_spread({name: names}, 5, what=name),
        plots.plot_epochs({name: [1, 2]}, {name: [0.1, 0.2]}),
    ):
        assert rendered(figure, tmp_path)
        texts = figure.findobj(lambda artist: hasattr(artist, "get_parse_math") and name in artist.get_text())
        assert texts
        assert not any("$" in name and text.get_parse_math() for text in texts)


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'ray_h5\[plots\]'"):
        plots.plot_row({"x": np.arange(3)})


def test_importing_plots_and_transforms_imports_no_engine():
    code = (
        "import sys, ray_h5.plots, ray_h5.transforms\n"
        "assert not {'matplotlib', 'torch', 'ray', 'h5py', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def pictures(figure):
    return [axes.images[0].get_array() for axes in figure.axes if axes.images and axes.images[0].get_array().ndim == 3]


@pytest.mark.parametrize(("shape", "dtype"), [((32, 32, 3), "u1"), ((3, 32, 32), "f4"), ((32, 32, 3), "f4")])
def test_a_picture_is_a_picture_in_each_figure(shape, dtype, tmp_path):
    before = (RNG.random(shape) * (255 if dtype == "u1" else 1)).astype(dtype)
    after = np.clip(before.astype("f8") + 0.1, 0, 1.05).astype(dtype)
    figure = plots.plot_augmentation(before, after)
    assert rendered(figure, tmp_path)
    assert [each.shape for each in pictures(figure)] == [(32, 32, 3)] * 2
    assert [axes.get_title() for axes in figure.axes][:3] == ["before", "after", "after - before"]
    change = figure.axes[2].images[0].get_array()
    assert change.shape == (32, 32)
    assert figure.axes[2].get_ylim() == figure.axes[0].get_ylim()
    assert [each.shape for each in pictures(plots.plot_row({"image": before}))] == [(32, 32, 3)]


def test_a_batch_is_refused():
    batch = np.zeros((8, 3, 32, 32))
    with pytest.raises(OptionError, match=r"pass image\[0\]"):
        plots.plot_row({"image": batch, "label": np.zeros(8)})
    with pytest.raises(OptionError, match=r"pass before\[0\]"):
        plots.plot_augmentation(batch, batch)
    with pytest.raises(OptionError, match=r"before\['y'\]"):
        plots.plot_augmentation({"y": batch}, {"y": batch}, column="y")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.datetime64("2024-03-01T00:00:00.000000000"), "2024-03-01"),
        (np.datetime64("2024-03-01T12:30:00.000000000"), "2024-03-01 12:30:00"),
        (np.datetime64("NaT", "s"), "NaT"),
        (dt.datetime(2024, 3, 1), "2024-03-01"),
        (np.float32(0.1), "0.1"),
        (1 / 3, "0.333333"),
        (np.float64("nan"), "nan"),
        (1234567.0, "1234567.0"),
        (b"abc", "abc"),
        (np.int64(7), "7"),
    ],
)
def test_scalars_are_short(value, shown):
    assert plots.plot_row({"x": value, "signal": np.zeros(9)}).get_suptitle() == f"x = {shown}"


def test_a_notebook_shows_a_figure_by_itself():
    pytest.importorskip("IPython")
    from IPython.core.formatters import DisplayFormatter

    found, _ = DisplayFormatter().format(plots.plot_row({"x": np.arange(3)}))
    assert found["image/png"][:8] == b"\x89PNG\r\n\x1a\n"
