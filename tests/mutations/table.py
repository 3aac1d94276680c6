"""Failures of other systems and of this one, the guards against them here, and the tests of those guards."""

from __future__ import annotations

from tests.mutations.doors import DOORS
from tests.mutations.features import FEATURES
from tests.mutations.pairs_workers import PAIRS_WORKERS
from tests.mutations.requests import REQUESTS

FAILURES = (*REQUESTS, *DOORS, *FEATURES, *PAIRS_WORKERS)
