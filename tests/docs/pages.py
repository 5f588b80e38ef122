"""The documents of the repository, taken apart: their code blocks, links and paths."""

import re
import textwrap
from pathlib import Path

from ray_h5 import errors

ERRORS = [name for name in vars(errors) if name.endswith("Error")]
ROOT = Path(__file__).parents[2]
DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))
PAGES = ["README.md", *DOCS, "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "cluster/README.md"]

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page, language):
    """Return the code blocks of a page in one language, each with the number of its first line."""
    text = text_of(page)
    return [
        (text.count("\n", 0, found.start(3)) + 1, textwrap.dedent(found[3]))
        for found in _BLOCK.finditer(text)
        if found[2] == language
    ]


def prose(page):
    """Return the page without its code blocks."""
    return _BLOCK.sub("", text_of(page))


def with_blocks(language):
    return [page for page in PAGES if blocks(page, language)]


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
