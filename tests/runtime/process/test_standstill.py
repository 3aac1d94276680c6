"""How long an event loop stood still is measured and exported."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from runtime.process.standstill import LONG_S, PERIOD_S, RECENT_S, Standstills

SECONDS = "baton_event_loop_standstill_seconds"
OWN_SECONDS = "baton_event_loop_own_standstill_seconds"
STALL_S = 0.3


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def standstills(registry: CollectorRegistry) -> AsyncIterator[Standstills]:
    seen = Standstills(registry)
    yield seen
    seen.stop()


def longest_s(registry: CollectorRegistry, since: str, name: str = SECONDS) -> float:
    value = registry.get_sample_value(name, {"since": since})
    assert value is not None
    return value


def num_long(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("baton_event_loop_long_standstills_total")


async def test_a_loop_that_stands_still_says_for_how_long(
    registry: CollectorRegistry, standstills: Standstills
) -> None:
    standstills.start()
    time.sleep(STALL_S)
    while longest_s(registry, "start") == 0:
        await asyncio.sleep(0)
    # A loaded machine makes it longer, never shorter.
    assert longest_s(registry, "start") >= STALL_S - PERIOD_S
    assert longest_s(registry, "recently") >= STALL_S - PERIOD_S
    assert (num_long(registry) or 0) >= 1


async def test_what_the_process_computed_is_told_apart(
    registry: CollectorRegistry, standstills: Standstills
) -> None:
    standstills.start()
    time.sleep(STALL_S)
    while longest_s(registry, "start") == 0:
        await asyncio.sleep(0)
    assert longest_s(registry, "start", OWN_SECONDS) < STALL_S / 2
    cpu_s = time.process_time() + STALL_S
    while time.process_time() < cpu_s:
        pass
    while longest_s(registry, "start", OWN_SECONDS) < STALL_S - PERIOD_S:
        await asyncio.sleep(0)


async def test_it_goes_on_looking(registry: CollectorRegistry, standstills: Standstills) -> None:
    standstills.start()
    for count in (1, 2, 3):
        time.sleep(STALL_S)
        while (num_long(registry) or 0) < count:
            await asyncio.sleep(0)


async def test_the_recent_longest_one_is_forgotten(
    registry: CollectorRegistry, standstills: Standstills
) -> None:
    now = time.monotonic()
    standstills.record(2.0, 1.0, now)
    standstills.record(LONG_S / 2, 3.0, now + RECENT_S + 1)
    assert longest_s(registry, "recently") == 2.0
    standstills.record(0.0, 0.0, now + 2 * RECENT_S + 2)
    assert longest_s(registry, "recently") == LONG_S / 2
    standstills.record(0.0, 0.0, now + 9 * RECENT_S)
    assert longest_s(registry, "recently") == 0
    assert longest_s(registry, "start") == 2.0
    assert longest_s(registry, "start", OWN_SECONDS) == 1.0
    assert num_long(registry) == 1
