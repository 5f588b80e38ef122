"""A suggestion: what rows of a file probably are, and the options that read it so."""

from __future__ import annotations

from dataclasses import dataclass

FEW = 3
MAX_COPIED = 40
"""Names that are listed, and columns of a call."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What rows probably are.

    Attributes
    ----------
    found : str
        What was seen.
    when : str
        When the options are right: ``if each is a sample``. Empty if there are no options.
    options : str
        The arguments of `read_h5`, as they are written.
    is_surprise : bool
        Whether what is read without them is probably not what is meant.
    more : str
        What else there is to say.
    """

    found: str
    when: str = ""
    options: str = ""
    is_surprise: bool = False
    more: str = ""

    @property
    def as_call(self) -> str:
        """A sentence with a call, for a report."""
        said = f". {_capital(self.when)}, write read_h5(paths, {self.options})" if self.options else ""
        page = ": see docs/files.md" if "axes=" in self.options else ": see docs/rows.md"
        return f"{self.found}{said}" + (f"; {self.more}" if self.more else "") + (page if self.options else "")

    @property
    def as_advice(self) -> str:
        """Sentences with options, for a message of whatever was called."""
        said = f" {_capital(self.when)}, pass {self.options}." if self.options else ""
        return f"{self.found}.{said}" + (f" {_capital(self.more)}." if self.more else "")


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
