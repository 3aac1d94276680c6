"""Redis and the pure model keep the same budgets, to the last bit, at the times that Redis names."""

from __future__ import annotations

import asyncio

import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduling.admission.budgets import Budget, Levels, Rate, take
from state import keys
from state.store import Store

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
