"""Plans over files of one wide column, `x`, and the rows of their epochs."""

import numpy as np

from tests.index.kit import plan_files


def plan_of(files, shuffle, **options):
    return plan_files(files, columns=["x"], shuffle=shuffle, **options)[1]


def epoch_of(plan, epoch=0):
    return plan.at(np.arange(plan.epoch_rows), epoch)
