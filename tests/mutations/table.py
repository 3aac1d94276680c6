"""Failures of other systems and of this one, the guards against them here, and the tests of those guards."""

from __future__ import annotations

from tests.mutations.doors import DOORS
from tests.mutations.features import FEATURES
from tests.mutations.pairs_holds import PAIRS_HOLDS
from tests.mutations.pairs_recovery import PAIRS_RECOVERY
from tests.mutations.pairs_workers import PAIRS_WORKERS
from tests.mutations.requests import REQUESTS
from tests.mutations.simulated import SIMULATED

FAILURES = (
    *REQUESTS,
    *DOORS,
    *FEATURES,
    *PAIRS_HOLDS,
    *PAIRS_RECOVERY,
    *PAIRS_WORKERS,
    *SIMULATED,
)
