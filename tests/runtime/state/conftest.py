"""Either store: what holds for Redis holds for the one in memory."""

from __future__ import annotations

import time

import pytest

from sim.store.memory_store import MemoryStore
from tests.runtime.state.async_store import AsyncMemoryStore
from tests.runtime.state.common import AnyStore
from tests.runtime.state.given_clock import START_MS, give_clock
from tests.runtime.state.patient import wait_patiently


@pytest.fixture
def time_passes() -> None:
    """Ask for stores in which time passes, for a test that waits until it has."""


@pytest.fixture(params=["redis", "memory"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AnyStore:
    """Return either store. Unless time passes, no grant expires in it, however slow the machine is."""
    stands_still = "time_passes" not in request.fixturenames
    if request.param == "memory":
        return AsyncMemoryStore(MemoryStore((lambda: START_MS / 1000) if stands_still else time.monotonic))
    if stands_still:
        give_clock(monkeypatch)
    store: AnyStore = request.getfixturevalue("store")
    return store


@pytest.fixture(autouse=True)
def patient_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of a test wait for Redis as long as a busy machine may need."""
    wait_patiently(monkeypatch)


@pytest.fixture
def on_the_tests_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores of this test go by the time in `NOW_KEY`."""
    give_clock(monkeypatch)
