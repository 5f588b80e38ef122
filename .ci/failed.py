"""Print the tests that failed in the last run, a line each, for another run of pytest."""

import json
from pathlib import Path

failed = json.loads(Path(".pytest_cache/v/cache/lastfailed").read_text())
if not failed:
    raise SystemExit("no test failed, and pytest did: see above")
for test in failed:
    # pytest-xdist adds the group.
    print(test.rpartition("@")[0] if test.rfind("@") > test.rfind("]") else test)
