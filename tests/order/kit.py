"""Plans over files of one wide column, `x`, and the rows of their epochs."""

import numpy as np

from ray_h5.loading.cursor import Cursor
from tests.index.kit import plan_files


def plan_of(files, shuffle, **options):
    return plan_files(files, columns=["x"], shuffle=shuffle, **options)[1]


def epoch_of(plan, epoch=0):
    return plan.at(np.arange(plan.epoch_rows), epoch)


def resume(plan, position):
    """Return the cursor of a run that goes on at a position."""
    cursor = Cursor(plan.order, plan.fingerprint)
    cursor.resume(position.to_dict())
    return cursor
