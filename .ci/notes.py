"""Prints what CHANGELOG.md says of a version, or fails: ``python .ci/notes.py v1.0.0``."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(tag: str) -> None:
    version = tag.removeprefix("v")
    (package,) = re.findall(r'^__version__ = "(.+)"', (ROOT / "ray_h5" / "__init__.py").read_text(), re.MULTILINE)
    assert version == package, f"the tag is {tag}, the version of the package {package}"
    for section in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        if title.split()[0] == version:
            assert "unreleased" not in title, f"CHANGELOG.md has no date of {version}"
            print(text.strip())
            return
    sys.exit(f"CHANGELOG.md has no section of {version}")


if __name__ == "__main__":
    main(sys.argv[1])
