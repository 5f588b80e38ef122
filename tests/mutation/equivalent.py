"""Changes that no test can notice, and why: what is delivered, and what is refused, is the same."""

import os

EQUIVALENT: dict[tuple[str, str, str], str] = {}
"""By module, line of source and change; ``*`` stands for each change of a line."""


def why_equivalent(mutant):
    """Return why nobody can notice a mutant; "" if somebody can."""
    path = os.path.relpath(mutant.path, "ray_h5")
    changes = (f"{mutant.before} -> {mutant.after}", "*")
    return next(
        (EQUIVALENT[path, mutant.line, change] for change in changes if (path, mutant.line, change) in EQUIVALENT), ""
    )
