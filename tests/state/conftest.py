"""Either store: what holds for Redis holds for the one in memory."""

from __future__ import annotations

import time

import pytest

from sim.store.memory_store import MemoryStore
from tests.state.async_store import AsyncMemoryStore
from tests.state.common import AnyStore
from tests.state.given_clock import give_clock
from tests.state.patient import wait_patiently


@pytest.fixture(params=["redis", "memory"])
def either(request: pytest.FixtureRequest) -> AnyStore:
    if request.param == "memory":
        return AsyncMemoryStore(MemoryStore(time.monotonic))
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
