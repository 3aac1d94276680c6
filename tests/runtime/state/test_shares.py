"""Tenants are charged for what they have had of the fleet."""

from __future__ import annotations

import math

import pytest

from scheduling.admission.shares import Standing
from tests.runtime.state.common import AnyStore


async def test_a_tenant_ahead_of_the_others_is_over_its_share(either: AnyStore) -> None:
    assert await either.charge_tenant("a", 100, band=1000, lead=50) == Standing(100, None, 0, is_over=False)
    assert await either.charge_tenant("b", 1.5, band=1000, lead=50) == Standing(101.5, 100, 1, is_over=False)
    assert await either.charge_tenant("b", 60, band=1000, lead=50) == Standing(161.5, 100, 1, is_over=False)
    assert await either.charge_tenant("b", 60, band=1000, lead=50) == Standing(161.5, 100, 1, is_over=True)
    assert await either.charge_tenant("b", 0, band=1000, lead=math.inf) == Standing(
        161.5, 100, 1, is_over=False
    )
    assert await either.charge_tenant("a", 12, band=1000, lead=50) == Standing(112, 161.5, 1, is_over=False)
    assert await either.charge_tenant("b", 1, band=1000, lead=50) == Standing(162.5, 112, 1, is_over=False)


async def test_nobody_counts_as_further_behind_than_a_band(either: AnyStore) -> None:
    await either.charge_tenant("modest", 0, band=100, lead=math.inf)
    await either.charge_tenant("greedy", 1000, band=100, lead=math.inf)
    assert await either.charge_tenant("greedy", 5, band=100, lead=100) == Standing(
        1005, 900, 1, is_over=False
    )
    assert await either.charge_tenant("modest", 1, band=100, lead=0) == Standing(906, 1005, 1, is_over=False)


async def test_a_refund_takes_a_charge_back(either: AnyStore) -> None:
    await either.charge_tenant("a", 0.1, band=1000, lead=1)
    await either.charge_tenant("a", 70, band=1000, lead=1)
    await either.refund_tenant("a", 70)
    await either.refund_tenant("nobody", 70)
    assert (await either.charge_tenant("a", 0, band=1000, lead=1)).counter == pytest.approx(0.1)


async def test_a_charge_below_nothing_is_refused(either: AnyStore) -> None:
    with pytest.raises(ValueError, match="tokens is -1; accepted: finite, from 0"):
        await either.charge_tenant("a", -1, band=1000, lead=0)
    with pytest.raises(ValueError, match="tokens is -1; accepted: finite, from 0"):
        await either.refund_tenant("a", -1)


async def test_a_request_pays_its_share_once(either: AnyStore) -> None:
    async def counter() -> float:
        return (await either.charge_tenant("a", 0, band=1000, lead=math.inf)).counter

    first = await either.charge_tenant("a", 100, band=1000, lead=0, request="a/1")
    assert first == Standing(100, None, 0, is_over=False)
    assert await either.charge_tenant("b", 0, band=1000, lead=math.inf) == Standing(
        100, 100, 1, is_over=False
    )
    await either.charge_tenant("a", 50, band=1000, lead=math.inf, request="a/2")
    for tokens in (100, 70):  # a repeated call, and another router, whose estimate differs
        again = await either.charge_tenant("a", tokens, band=1000, lead=0, request="a/1")
        assert (again.counter, again.is_over) == (150, False), "it has been let in"
    for _ in range(2):
        await either.refund_tenant("a", 70, request="a/1")
        assert await counter() == 50, "what was charged comes back, once"
    await either.charge_tenant("a", 10, band=1000, lead=math.inf, request="a/1")
    assert await counter() == 60, "asked again after a refusal, it pays again"


async def test_who_was_over_its_share_was_not_charged(either: AnyStore) -> None:
    await either.charge_tenant("a", 100, band=1000, lead=math.inf)
    await either.charge_tenant("b", 300, band=1000, lead=math.inf)
    assert (await either.charge_tenant("b", 10, band=1000, lead=5, request="b/1")).is_over
    await either.refund_tenant("b", 10, request="b/1")
    assert (await either.charge_tenant("b", 0, band=1000, lead=math.inf)).counter == 400
