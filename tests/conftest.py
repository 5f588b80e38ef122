import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A worker that reports waits until it is asked, by default every 2 s.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")

# "ci" runs the same examples each time; "nightly" looks for new ones: --hypothesis-profile=nightly
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=200, derandomize=True, **_COMMON)
settings.register_profile("nightly", max_examples=10_000, **_COMMON)
settings.load_profile("ci")

_FOLDER = Path(__file__).parent
_GROUPS = {"ray_data": "one cluster", "integration": "clusters", "cluster": "clusters", "examples": "clusters"}


def pytest_collection_modifyitems(items):
    """With `-n`, keep together what shares a Ray cluster, and, in another process, what starts clusters of its own."""
    for item in items:
        group = _GROUPS.get(item.path.relative_to(_FOLDER).parts[0])
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
