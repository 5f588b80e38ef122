"""The programs of examples/adapters stay short, and the page of adapters says how each is used."""

from tests.docs.pages import text_of

from .conftest import ADAPTERS


def test_they_are_short_and_documented():
    programs = sorted(ADAPTERS.glob("*.py"))
    assert programs
    for path in programs:
        assert len(path.read_text().splitlines()) <= 120, path.name
        assert path.stem in text_of("docs/adapters.md"), path.name
