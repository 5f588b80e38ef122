"""What ranks of one run compare without waiting for each other."""

from __future__ import annotations

import sys


def first_said(key: str, own: str, ranks: int) -> str | None:
    """Return what the first of some ranks said under a key; that is `own` for the first one.

    Ranks that torch.distributed knows share a store. Unlike a collective operation, it waits for no rank: one alone may
    begin an epoch. Of two ranks that say different texts, the later one learns of it.

    Parameters
    ----------
    key : str
        What is compared: the same on all ranks, and used once.
    own : str
        What this rank says.
    ranks : int
        How many ranks compare.

    Returns
    -------
    str or None
        None if there is no store that these ranks share.
    """
    distributed = sys.modules.get("torch.distributed")  # a process that uses it has imported it
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() != ranks:
        return None
    try:
        store = distributed.distributed_c10d._get_default_store()
        return bytes(store.compare_set(f"ray_h5/{key}", "", own)).decode()
    except (RuntimeError, ValueError, AttributeError):  # of a backend without a store, or its process has ended
        return None
