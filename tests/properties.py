"""How many examples properties are tried with."""

from hypothesis import settings

DEFAULT_EXAMPLES = 25
"""Examples of a property in each run; the profile "nightly" has more, and other ones."""


def few(examples: int, **options: object) -> settings:
    """Return the settings of a property that says how many examples it takes; "nightly" has as many times more."""
    return settings(max_examples=max(1, examples * settings.default.max_examples // DEFAULT_EXAMPLES), **options)
