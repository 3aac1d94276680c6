"""Redis and the pure model keep the same budgets, to the last bit, at the times that Redis names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.state import keys
from runtime.state.store import Store
from scheduling.admission.budgets import (
    CALLS_AFTER_END,
    ENDED_RECEIPT_S,
    RECEIPT_CALLS,
    RECEIPT_S,
    Budget,
    Levels,
    Payer,
    Rate,
    Taken,
    take,
)

pytestmark = pytest.mark.integration

rates = st.none() | st.builds(Rate, st.floats(0.5, 500), st.floats(1, 500))
steps = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 3), st.integers(0, 600)),
    st.tuples(st.just("return"), st.just(0), st.integers(0, 600)),
    st.tuples(st.just("pass"), st.just(0), st.integers(0, 3000)),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.builds(Budget, rates, rates), st.lists(steps, max_size=12))
def test_redis_keeps_budgets_as_the_model_does(
    redis_url: str, budget: Budget, asked: list[tuple[str, int, int]]
) -> None:
    asyncio.run(_play(redis_url, budget, asked))


async def _play(redis_url: str, budget: Budget, asked: list[tuple[str, int, int]]) -> None:
    store = await Store.connect(redis_url)
    before: Levels | None = None
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await admin.delete(keys.budget_of("acme"))
        for step, requests, amount in asked:
            if step == "take":
                found = await store.take_budget("acme", budget, requests, amount)
                assert found == take(budget, before, requests, amount, found.left.at_ms)
                before = before if found.wait_ms else found.left
            elif before is None:
                await store.return_budget("acme", amount)  # nothing is known: nothing comes of it
                assert not await admin.exists(keys.budget_of("acme"))
            elif step == "return":
                await store.return_budget("acme", amount)
                before = Levels(before.requests, before.tokens + amount, before.at_ms)
            else:  # time passes: what was so at `at` was so earlier
                before = Levels(before.requests, before.tokens, before.at_ms - amount)
                await admin.hset(keys.budget_of("acme"), "at", str(before.at_ms))
                await admin.persist(keys.budget_of("acme"))
    await store.close()


async def test_two_routers_spend_one_budget(store: Store, redis_url: str) -> None:
    other = await Store.connect(redis_url)
    budget = Budget(requests=Rate(0.001, 10))
    calls = [entry.take_budget("acme", budget, 1, 0) for entry in (store, other) for _ in range(10)]
    taken = await asyncio.gather(*calls)
    assert sum(entry.wait_ms == 0 for entry in taken) == 10
    assert (await store.take_budget("other", budget, 1, 0)).wait_ms == 0
    await other.close()


async def test_a_budget_that_is_full_again_is_forgotten(store: Store, redis_url: str) -> None:
    await store.take_budget("acme", Budget(tokens=Rate(0.1, 50)), 0, 50)
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        assert 400_000 <= await admin.pttl(keys.budget_of("acme")) <= 501_000


BUDGET = Budget(requests=Rate(0.001, 10), tokens=Rate(0.001, 1000))
MAY_COST = 300
"""Tokens that a request may cost; to tokenise its text costs 3 of them."""


class Till:
    """The budget of one tenant, which two routers charge for requests."""

    def __init__(self, stores: list[Store]) -> None:
        self._stores = stores
        self._calls = 0

    async def take(self, cost: int, *, request: str = "r", requests: int = 0, call: str = "") -> Taken:
        """Charge a call at one router or the other; it is a new one unless `call` is given."""
        self._calls += 1
        payer = Payer(request, call or f"call {self._calls}")
        return await self._stores[self._calls % 2].take_budget("acme", BUDGET, requests, cost, payer)

    async def left(self) -> tuple[int, int]:
        """Return what is left of requests and of tokens."""
        levels = (await self._stores[0].take_budget("acme", BUDGET, 0, 0)).left
        return round(levels.requests), round(levels.tokens)

    async def end(self, unused: int, request: str = "r") -> None:
        """The request has ended."""
        await self._stores[0].return_budget("acme", unused, Payer(request, ""))

    async def refuse(self, call: str, request: str = "r") -> None:
        """A call is refused."""
        await self._stores[1].return_budget("acme", 1, Payer(request, call), is_refused=True)


@pytest_asyncio.fixture
async def till(store: Store, redis_url: str) -> AsyncIterator[Till]:
    other = await Store.connect(redis_url)
    yield Till([store, other])
    await other.close()


async def test_a_request_that_another_router_takes_over_pays_once(till: Till) -> None:
    for received in (0, 0, 100):  # sent, sent again to another router, and resumed at the first
        await till.take(3, requests=1)
        await till.take(MAY_COST - received)
        assert await till.left() == (9, 1000 - MAY_COST)
    for _ in range(2):  # each call that hears of the end says so
        await till.end(unused=180)
        assert await till.left() == (9, 1000 - 120)
    await till.take(3, requests=1)
    await till.take(MAY_COST)
    await till.end(unused=180)
    assert await till.left() == (9, 1000 - 120), "what it has received is sent again"
    await till.take(3, request="other", requests=1)
    assert await till.left() == (8, 1000 - 123)


async def test_a_call_that_is_repeated_after_a_lost_answer_pays_once(till: Till) -> None:
    for _ in range(2):
        assert (await till.take(3, requests=1, call="admission")).tokens == 3
    for _ in range(2):
        assert (await till.take(MAY_COST, call="charge")).tokens == MAY_COST - 3
    assert await till.left() == (9, 1000 - MAY_COST)
    for _ in range(2):
        await till.refuse("charge")
        assert await till.left() == (9, 1000 - 3), "tokenising its text does not come back"
    await till.refuse("never executed")
    await till.take(MAY_COST)
    assert await till.left() == (9, 1000 - MAY_COST), "the next router charges what was given back"


async def test_a_refused_call_takes_nothing_from_one_that_is_served(till: Till) -> None:
    await till.take(MAY_COST, call="served")
    assert (await till.take(MAY_COST, call="refused")).tokens == 0
    await till.refuse("refused")
    await till.refuse("served")  # cannot be: another call came to count on it
    assert await till.left() == (10, 1000 - MAY_COST)


async def test_a_paid_request_passes_an_exhausted_budget(till: Till) -> None:
    await till.take(3, requests=1)
    assert (await till.take(1000)).tokens == 997
    assert (await till.take(1, request="other", requests=1)).wait_ms > 0
    assert (await till.take(3, requests=1)).wait_ms == 0
    assert (await till.take(990)).wait_ms == 0


async def test_one_id_does_not_buy_any_number_of_calls(till: Till) -> None:
    for _ in range(RECEIPT_CALLS):
        await till.take(3, requests=1)
    assert await till.left() == (9, 997)
    await till.take(3, requests=1)
    assert await till.left() == (8, 994)


async def test_a_request_that_has_ended_buys_two_calls_more(till: Till) -> None:
    await till.take(3, requests=1)
    await till.take(MAY_COST)
    await till.end(unused=0)
    for _ in range(CALLS_AFTER_END):
        await till.take(3, requests=1)
        await till.take(MAY_COST)
        assert await till.left() == (9, 1000 - MAY_COST)
        await till.end(unused=0)
    await till.take(3, requests=1)
    await till.take(MAY_COST)
    assert await till.left() == (8, 1000 - 2 * MAY_COST)


async def test_whoever_was_only_let_in_is_soon_forgotten(till: Till, redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await till.take(3, requests=1)
        assert 0 < await admin.pttl(keys.receipt_of("acme", "r")) <= ENDED_RECEIPT_S * 1000
        await till.take(MAY_COST)
        await till.take(3, requests=1)
        assert await admin.pttl(keys.receipt_of("acme", "r")) > ENDED_RECEIPT_S * 1000


async def test_receipts_are_forgotten(till: Till, redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as admin:
        await till.take(MAY_COST)
        assert 0 < await admin.pttl(keys.receipt_of("acme", "r")) <= RECEIPT_S * 1000
        await till.end(unused=1)
        assert 0 < await admin.pttl(keys.receipt_of("acme", "r")) <= ENDED_RECEIPT_S * 1000
        await admin.delete(keys.receipt_of("acme", "r"))
    await till.end(unused=99)
    assert await till.left() == (10, 1000 - MAY_COST + 1 + 99), "a long request still gets back what it left"
