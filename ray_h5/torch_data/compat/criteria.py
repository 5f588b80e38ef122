"""What the options of a `CombinedHDF5Dataset` mean as criteria on columns."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ray_h5.columns.schema import ColumnSpec
from ray_h5.errors import PredicateError
from ray_h5.predicates.criteria import between, where


def values_of(guids: Sequence[Any], spec: ColumnSpec) -> list[Any]:
    """Return patients in the dtype of a column, without those that it cannot hold."""
    if spec.kind == "string":
        return [guid if isinstance(guid, bytes) else str(guid) for guid in guids]
    if spec.kind != "number":
        return list(guids)
    found = [guid for guid in guids if not isinstance(guid, str)]
    for guid in (guid for guid in guids if isinstance(guid, str)):
        with contextlib.suppress(ValueError):
            number = float(guid) if spec.dtype.kind == "f" else int(guid)
            if isinstance(number, float) or abs(number) < 2**64:
                found.append(number)
    return found


def criteria_of(
    guids: Sequence[str] | None,
    cs_label: bool | None,
    bg_label: bool | None,
    epoch_min: float | None,
    epoch_max: float | None,
) -> dict[str, tuple[str, Any]]:
    """Return the criteria on scalar columns, by their names in the user's terms; patients are a list."""
    found: dict[str, tuple[str, Any]] = {}
    if guids is not None:
        found[f"allowed_guids ({len(guids)} of them)"] = ("guid", guids)
    for name, wanted in (("cs_label", cs_label), ("bg_label", bg_label)):
        if wanted is not None:
            found[f"{name}={wanted!r}"] = (name, ~where(**{name: 0}) if wanted else where(**{name: 0}))
    if epoch_min is not None and epoch_max is not None and epoch_min > epoch_max:
        raise PredicateError(f"no sample matches: epoch_min={epoch_min!r} is above epoch_max={epoch_max!r}")
    if epoch_min is not None:
        found[f"epoch_min={epoch_min!r}"] = ("epoch", where(epoch=between(epoch_min, None)))
    if epoch_max is not None:
        found[f"epoch_max={epoch_max!r}"] = ("epoch", where(epoch=between(None, epoch_max)))
    return found
