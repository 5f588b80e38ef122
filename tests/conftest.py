from hypothesis import HealthCheck, settings

# "ci" runs the same examples each time; "nightly" looks for new ones: --hypothesis-profile=nightly
_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", max_examples=200, derandomize=True, **_COMMON)
settings.register_profile("nightly", max_examples=10_000, **_COMMON)
settings.load_profile("ci")
