"""Messages show a predicate as it is written, without the steps that make its comparisons exact."""

import datetime as dt

import numpy as np
import pyarrow.compute as pc
import pytest

from ray_h5.predicates.criteria import any_equal, between, row_mask, where
from ray_h5.predicates.virtual_names import Fold, in_words, virtual_name

FOLD = pc.field(virtual_name("rows", Fold(5, 0, False, None, 0, 50, 1, "ab"))) == pc.scalar(True)


@pytest.mark.parametrize(
    ("predicate", "words"),
    [
        (where(g=3), "(g == 3)"),
        (where(g=3.5), "(g == 3.5)"),
        (where(q=0.1), "(q == 0.1)"),
        (where(q=[0.1, 2]), "(q in [0.1, 2])"),
        (where(q=[0.1, float("inf")]), "(q in [0.1, inf])"),
        (where(q=between(0.1, 0.9)), "(q = between(0.1, 0.9))"),
        (where(q=between(-2.5, None)), "(q = between(-2.5, None))"),
        (where(g=[7, 8]), "(g in [7, 8])"),
        (where(g=[0, 1, 7]), "(g in [0, 1, 7])"),
        (where(g=0), "(g == 0)"),
        (where(s=["a", "b"]), '(s in ["a", "b"])'),
        (where(s="a  b"), '(s == "a b")'),
        (where(s=[]), "(s in [])"),
        (~where(b=[True, False]), "not ((b in [True, False]))"),
        (where(g=None), "(g is null)"),
        (where(g=[None, 7]), "(g in [None, 7])"),
        (where(t="2024-01-05"), '(t == "2024-01-05")'),
        (where(t=["2024-01-05", "2024-01-06"]), '(t in ["2024-01-05", "2024-01-06"])'),
        (where(t=between("2024-01-05", None)), '(t = between("2024-01-05", None))'),
        (where(t=dt.datetime(2024, 1, 5)), "(t == 2024-01-05 00:00:00)"),
        (~where(g=[7]) | where(s="x"), '(not ((g in [7])) or (s == "x"))'),
        (where(**{"mask/train": row_mask()}), "(mask/train = row_mask())"),
        (where(target=any_equal(2, valid="weight"), q=0.1), "((target = any_equal(2, valid='weight')) and (q == 0.1))"),
        (where(s="ray_h5:[3]"), '(s == "ray_h5:[3]")'),
        (where(s='ray_h5:["row'), r'(s == "ray_h5:[\"row")'),
        (FOLD, "(fold 0 of kfold(k=5), all other rows)"),
    ],
)
def test_words(predicate, words):
    assert in_words(predicate) == words


def test_long_predicates_are_cut_off_and_have_one_line():
    for predicate in (where(g=list(range(1000))), where(g=np.arange(1000), s=[f"p{i}" * 30 for i in range(40)])):
        words = in_words(predicate)
        assert len(words) <= 300
        assert "\n" not in words
    for length in range(280, 300):
        whole = f'(s == "{"a" * length}")'
        assert in_words(where(s="a" * length)) == (whole if len(whole) <= 300 else f"{whole[:296]} ...")
