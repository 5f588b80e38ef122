"""Tables that say where the values of each row are, as neutrino telescopes write them: `inspect` prints the call."""

import numpy as np
import pytest

import ray_h5
from ray_h5.cli import main
from ray_h5.torch_data import H5Dataset
from tests.kit.files import save

COUNTS = np.array([3, 0, 4, 2])
STARTS = np.cumsum([0, *COUNTS[:-1]])
PULSES = np.array([(1, i, i / 2) for i in range(9)], [("Run", "u4"), ("Event", "u4"), ("charge", "f8")])


def table(**fields):
    made = np.zeros(4, [(name, values.dtype) for name, values in fields.items()])
    for name, values in fields.items():
        made[name] = values
    return made


def printed_call(path, capsys):
    main(["inspect", path])
    said = capsys.readouterr().out.partition("For these rows, write read_h5(paths, columns=[ray_h5.ragged(")
    said = said[1].partition("columns=")[2] + said[2]
    return eval(said.partition("): see")[0], {"ray_h5": ray_h5}) if said else None


KM3NET = {
    "hits/_indices": table(index=STARTS, n_items=COUNTS),
    "hits/time": np.arange(9.0),
    "tracks/_indices": table(index=np.arange(4), n_items=np.ones(4, int)),
    "tracks/pos": np.ones((4, 3)),
    "event_info": table(event_id=np.arange(4), weight=np.ones(4)),
}
ICECUBE = {
    "__I3Index__/Pulses": table(Event=np.arange(4), exists=np.ones(4, "u1"), start=STARTS, stop=STARTS + COUNTS),
    "Pulses": PULSES,
    "energy": np.arange(4.0),
}
HIRID = {"data": np.arange(9.0), "patient_windows": np.c_[STARTS, STARTS + COUNTS, np.arange(4)]}
RETURNN = {"inputs": np.arange(18.0).reshape(9, 2), "seqLengths": np.c_[COUNTS, COUNTS], "seqTags": list("abcd")}
DSEC = {"events/t": np.arange(9), "events/x": np.arange(9) * 2, "ms_to_idx": STARTS}
LENGTHS = {"events/index": table(length=COUNTS, pos=STARTS), "events/time": np.arange(9.0), "events/y": np.ones((9, 2))}


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (KM3NET, {"hits/time": [3.0, 4.0, 5.0, 6.0], "event_info": (2, 1.0)}),
        (ICECUBE, {"Pulses": PULSES[3:7].tolist(), "energy": 2.0}),
        (LENGTHS, {"events/time": [3.0, 4.0, 5.0, 6.0], "events/y": [[1.0, 1.0]] * 4}),
        (HIRID, {"data": [3.0, 4.0, 5.0, 6.0]}),
        (RETURNN, {"inputs": RETURNN["inputs"][3:7].tolist(), "seqTags": "c"}),
        (DSEC, {"events/t": [3, 4, 5, 6], "events/x": [6, 8, 10, 12]}),
    ],
    ids=["KM3NeT", "IceCube", "lengths", "HiRID", "RETURNN", "DSEC"],
)
def test_the_printed_call_reads_the_rows(tmp_path, capsys, columns, row):
    path = save(tmp_path / "a.h5", columns)
    rows = H5Dataset(path, printed_call(path, capsys))
    assert len(rows) == 4
    for name, expected in row.items():
        found = rows[2][name]
        assert (found.item() if isinstance(expected, tuple) else np.asarray(found).tolist()) == expected
    assert [len(each[next(iter(row))]) for each in rows] == COUNTS.tolist()


def test_a_table_that_says_something_else(tmp_path, capsys):
    other = save(tmp_path / "a.h5", {**LENGTHS, "events/index": table(length=COUNTS + 5, pos=STARTS)})
    assert printed_call(other, capsys) is None


@pytest.mark.usefixtures("ray_local")
def test_ray(tmp_path, capsys):
    path = save(tmp_path / "a.h5", ICECUBE)
    rows = ray_h5.read_h5(path, columns=printed_call(path, capsys)).take_all()
    assert [[pulse["Event"] for pulse in row["Pulses"]] for row in rows] == [[0, 1, 2], [], [3, 4, 5, 6], [7, 8]]
