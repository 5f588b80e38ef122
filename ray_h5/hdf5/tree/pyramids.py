"""Images at several resolutions, as BigDataViewer and Imaris write them: the finest level is read by default."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ray_h5.errors import UnsupportedColumnError

_LEVELS = (
    re.compile(r"^(?P<above>(?:.*/)?t\d{5,}/s\d{2,}/)(?P<level>\d+)(?P<below>/cells)$"),
    re.compile(r"^(?P<above>(?:.*/)?ResolutionLevel )(?P<level>\d+)(?P<below>/TimePoint \d+/Channel \d+/Data)$"),
)
"""Where BigDataViewer and Imaris have each level."""

_BESIDE = (
    re.compile(r"^(?:.*/)?s\d{2,}/(?:resolutions|subdivisions)$"),
    re.compile(r"^(?:.*/)?ResolutionLevel \d+/TimePoint \d+/Channel \d+/Histogram$"),
    re.compile(r"^(?:.*/)?Thumbnail/Data$"),
)
"""What they write beside the images: the scale of each level, histograms, a small picture."""


def left_out(path: str, group: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, UnsupportedColumnError]:
    """Return the coarser levels of pyramids, and what belongs to them, each with an error that says what it is.

    Parameters
    ----------
    path : str
        The file, for messages.
    group : str
        The group that names are relative to.
    shapes : mapping of str to tuple of int
        The shape of each dataset.
    """
    names = {f"{group}/{name}".strip("/"): name for name in shapes}
    found: dict[str, UnsupportedColumnError] = {}
    for whole, name in names.items():
        place = next(filter(None, (each.match(whole) for each in _LEVELS)), None)
        if place is None or not int(place["level"]):
            continue
        finest = names.get(f"{place['above']}0{place['below']}")
        if finest is not None and _is_coarser(shapes[name], shapes[finest]):
            found[name] = _error(path, name, f"is a coarser level of {finest!r}")
    has_images = any(each.match(whole) for whole in names for each in _LEVELS)
    for whole, name in names.items():
        if has_images and any(each.match(whole) for each in _BESIDE):
            found[name] = _error(path, name, "is about images of several resolutions, and none itself")
    return found


def _is_coarser(shape: tuple[int, ...], finest: tuple[int, ...]) -> bool:
    if len(shape) != len(finest) or shape == finest:
        return False
    return all(n <= most for n, most in zip(shape, finest, strict=True))


def _error(path: str, name: str, what: str) -> UnsupportedColumnError:
    return UnsupportedColumnError(f"{path}: column {name!r} {what}; name it in columns=[...] to read it")
