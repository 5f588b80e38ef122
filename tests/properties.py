"""How many examples properties are tried with."""

from hypothesis import settings

DEFAULT_EXAMPLES = 50


def few(examples: int) -> settings:
    """Return the settings of a property whose examples are slow; the profile "nightly" has as many more of it."""
    return settings(max_examples=examples * settings.default.max_examples // DEFAULT_EXAMPLES)
