"""The registry: small files of every kind, each with what reading it has to give."""

from __future__ import annotations

from tests.conformance.case import Case
from tests.conformance.damage import DAMAGE
from tests.conformance.filters import FILTERS
from tests.conformance.names import NAMES
from tests.conformance.storage import STORAGE
from tests.conformance.values import VALUES

CASES: tuple[Case, ...] = (*STORAGE, *FILTERS, *VALUES, *NAMES, *DAMAGE)
