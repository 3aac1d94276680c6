"""Redis and the store in memory, put through the same operations at the same times, answer the same."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

import hypothesis
import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from runtime.state import keys
from runtime.state.connection import LONGEST_SILENCE_MS
from runtime.state.errors import QueueFull
from runtime.state.records import (
    DecodeRoom,
    Grant,
    Hold,
    Notice,
    Nudge,
    PrefillRoom,
    QueueEntry,
    WorkerRecord,
)
from runtime.state.store import Store
from scheduling.admission.shares import ACTIVE_MS, CHARGED_MS, MAX_DEBTS, SEAT_SHARE, tenant_of
from sim.store.memory_store import MemoryStore
from tests.patience import PATIENCE_S
from tests.redis_server import empty
from tests.runtime.state.async_store import AsyncMemoryStore
from tests.runtime.state.common import AnyStore
from tests.runtime.state.given_clock import NOW_KEY

AHEAD_MS = 3_600_000
"""Lead over the server's clock, by which whole ledgers expire: a slow machine must not overtake it."""
SILENCE_MS = LONGEST_SILENCE_MS // 2
BUCKETS = (4096, 256, 16)
CAPACITY = 12
LISTENING = ("r1", "r2")
ROUTERS = st.sampled_from([*LISTENING, "deaf"])
TENANTS = ("", "a/", "b/", "c-~/")
REQUESTS = st.sampled_from([f"{TENANTS[i % 4]}q{i}" for i in range(16)])
SEATS = st.sampled_from([1, 1, 1, 2, 3])
SHARES = st.sampled_from([SEAT_SHARE, SEAT_SHARE, 2 * SEAT_SHARE, 500])
PREFILLERS = st.sampled_from(["p1:a", "p2:a"])
ADAPTERS = st.sampled_from(["", "", "red", "blue"])
LOADED = st.sampled_from([(), ("red",), ("blue", "red")])
DECODERS = st.sampled_from(
    [
        DecodeRoom("d1:a", 12, 3, ("red",)),
        DecodeRoom("d2:a", 20, 9, ("blue", "red")),
        DecodeRoom("d3:a", 3, 9),
    ]
)
SEVERAL_DECODERS = st.lists(DECODERS, max_size=3, unique=True)
DUE_MS = st.one_of(st.integers(-20, 20), st.integers(0, 300), st.integers(0, 100_000))
TTL_S = st.sampled_from([0.05, 0.5, 5.0])
PAIRS = st.lists(st.tuples(REQUESTS, st.sampled_from(["p1:a", "p2:a", "d1:a", "d2:a"])), max_size=6)
HOLDERS = st.sampled_from(["p1:a", "p2:a", "d1:a"])
HOLDS = st.lists(st.builds(Hold, REQUESTS, HOLDERS, st.integers(1, 9), SEATS, SHARES), max_size=4)

Operation = Callable[[AnyStore], Coroutine[Any, Any, Any]]
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        lambda key, router, due, takes_turns: (
            lambda store: store.enqueue(
                QueueEntry(key, router, 1, due, work_tokens=1, blocks=2, takes_turns=takes_turns), CAPACITY
            )
        ),
        REQUESTS,
        ROUTERS,
        DUE_MS,
        st.booleans(),
    ),
    st.builds(
        lambda caller, worker, decoders: lambda store: store.grant(caller, PrefillRoom(worker, 9), decoders),
        st.sampled_from(LISTENING),
        PREFILLERS,
        SEVERAL_DECODERS,
    ),
    st.builds(
        lambda key, worker, decoder, ttl: (
            lambda store: store.lease_at_once(
                QueueEntry(key, "r1", 1, 0, work_tokens=1, blocks=2), PrefillRoom(worker, 9), decoder, ttl
            )
        ),
        REQUESTS,
        PREFILLERS,
        DECODERS,
        TTL_S,
    ),
    st.builds(
        lambda key, worker, decoders, ttl: lambda store: store.settle(key, worker, decoders, ttl),
        REQUESTS,
        PREFILLERS,
        SEVERAL_DECODERS,
        TTL_S,
    ),
    st.builds(lambda key, worker: lambda store: store.release_credit(key, worker), REQUESTS, PREFILLERS),
    st.builds(lambda key, decoder: lambda store: store.release_lease(key, decoder.key), REQUESTS, DECODERS),
    st.builds(lambda key: lambda store: store.dequeue(key), REQUESTS),
)
"""Those that routers make most, to be made at once."""


class SideBySide(RuleBasedStateMachine):
    """Both stores, on one clock that only the rules move."""

    def __init__(self, store: Store, admin: redis.Redis, run: Callable[[Coroutine[Any, Any, Any]], Any]):
        super().__init__()
        self.store, self.admin, self.run_async = store, admin, run
        empty(admin)
        seconds, micros = admin.time()
        self.now_ms = seconds * 1000 + micros // 1000 + AHEAD_MS
        self.memory = MemoryStore(lambda: (self.now_ms + 0.5) / 1000)
        self.registered: dict[str, tuple[WorkerRecord, int]] = {}
        self.notices: list[tuple[str, Notice]] = []
        self.pubsub = admin.pubsub(ignore_subscribe_messages=True)
        self.pubsub.subscribe(*(keys.router_channel(name) for name in LISTENING), keys.nudge_channel())
        for _ in range(len(LISTENING) + 1):
            assert self.pubsub.get_message(timeout=PATIENCE_S) is None
        for name in LISTENING:
            self.memory.subscribe(name, lambda notice, name=name: self.notices.append((name, notice)))  # type: ignore[misc]  # a lambda's default has no annotation
        self.pass_time(0)

    def teardown(self) -> None:
        self.pubsub.close()

    def demand_same(self, *operations: Operation) -> None:
        """Give Redis all operations at once, and the store in memory one after the other."""
        memory = AsyncMemoryStore(self.memory)
        expected = [self.run_async(_answer(operation, memory)) for operation in operations]
        assert self.run_async(_answers(operations, self.store)) == expected
        grants = [(name, action) for name, action in self.notices if isinstance(action, Grant)]
        nudges = sum(name == LISTENING[0] and isinstance(action, Nudge) for name, action in self.notices)
        self.notices.clear()
        heard = Counter(self.next_message() for _ in range(len(grants) + nudges))
        said = Counter(
            (keys.router_channel(name), f"{grant.worker_key} {grant.decode_key} {grant.request_key}")
            for name, grant in grants
        )
        assert heard == said + Counter({(keys.nudge_channel(), ""): nudges})

    def next_message(self) -> tuple[str, str]:
        message = self.pubsub.get_message(timeout=PATIENCE_S)
        assert message is not None
        return message["channel"], message["data"]

    @rule(ms=st.one_of(st.integers(1, 20), st.integers(1, 400), st.integers(1, 6000)))
    def pass_time(self, ms: int) -> None:
        """With calls as often as a living fleet makes them."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms - SILENCE_MS:
            self._set_clock(self.now_ms + SILENCE_MS)
        self._set_clock(end_ms)

    def _set_clock(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.admin.set(NOW_KEY, now_ms)
        self.run_async(self.store.list_workers())

    @rule(
        key=REQUESTS,
        router=ROUTERS,
        slo_class=st.integers(0, 3),
        due=DUE_MS,
        tokens=st.integers(0, 9),
        adapter=ADAPTERS,
        seats=SEATS,
        share=SHARES,
        takes_turns=st.booleans(),
    )
    def enqueue(
        self,
        key: str,
        router: str,
        slo_class: int,
        due: int,
        tokens: int,
        adapter: str = "",
        seats: int = 1,
        share: int = SEAT_SHARE,
        *,
        takes_turns: bool = True,
    ) -> None:
        blocks = 1 + tokens
        entry = QueueEntry(
            key, router, slo_class, due, tokens, blocks, adapter, seats, share, takes_turns=takes_turns
        )
        self.demand_same(lambda store: store.enqueue(entry, CAPACITY))

    @rule(
        entries=st.lists(
            st.tuples(
                REQUESTS, st.sampled_from(LISTENING), st.integers(1, 2), DUE_MS, st.integers(1, 5), ADAPTERS
            ),
            min_size=5,
            max_size=12,
        )
    )
    def enqueue_many(self, entries: list[tuple[str, str, int, int, int, str]]) -> None:
        for entry in entries:
            self.enqueue(*entry)

    @rule(key=REQUESTS)
    def dequeue(self, key: str) -> None:
        self.demand_same(lambda store: store.dequeue(key))

    @rule(
        caller=st.sampled_from(LISTENING),
        key=PREFILLERS,
        limit=st.integers(0, 20),
        most=st.integers(0, 3),
        prompts=st.integers(0, 2),
        adapters=LOADED,
        decoders=SEVERAL_DECODERS,
    )
    def grant(
        self,
        caller: str,
        key: str,
        limit: int,
        most: int,
        prompts: int,
        adapters: tuple[str, ...],
        decoders: list[DecodeRoom],
    ) -> None:
        room = PrefillRoom(key, limit, most, adapters, prompts)
        self.demand_same(lambda store: store.grant(caller, room, decoders))

    @rule(
        key=REQUESTS,
        router=ROUTERS,
        sizes=st.tuples(st.integers(1, 5), st.integers(1, 9), SEATS, SHARES),
        prefill=PREFILLERS,
        limit=st.integers(0, 20),
        prompts=st.integers(0, 2),
        decoder=DECODERS,
        ttl=TTL_S,
    )
    def lease_at_once(
        self,
        key: str,
        router: str,
        sizes: tuple[int, int, int, int],
        prefill: str,
        limit: int,
        prompts: int,
        decoder: DecodeRoom,
        ttl: float,
    ) -> None:
        tokens, blocks, seats, share = sizes
        entry = QueueEntry(key, router, 1, 0, work_tokens=tokens, blocks=blocks, seats=seats, share=share)
        room = PrefillRoom(prefill, limit, min_prompts=prompts)
        self.demand_same(lambda store: store.lease_at_once(entry, room, decoder, ttl))

    @rule(key=REQUESTS, prefill=PREFILLERS, decoders=SEVERAL_DECODERS, ttl=TTL_S)
    def settle(self, key: str, prefill: str, decoders: list[DecodeRoom], ttl: float) -> None:
        self.demand_same(lambda store: store.settle(key, prefill, decoders, ttl))

    @rule(prefill=PREFILLERS, decoders=SEVERAL_DECODERS, ttl=TTL_S)
    def settle_what_is_granted(self, prefill: str, decoders: list[DecodeRoom], ttl: float) -> None:
        for key in self.memory.credits(prefill):
            self.settle(key, prefill, decoders, ttl)

    @rule(operations=st.lists(OPERATIONS, min_size=2, max_size=9))
    def do_at_once(self, operations: list[Operation]) -> None:
        self.demand_same(*operations)

    @rule(key=REQUESTS, worker=PREFILLERS)
    def release_credit(self, key: str, worker: str) -> None:
        self.demand_same(lambda store: store.release_credit(key, worker))

    @rule(key=REQUESTS, decoder=DECODERS)
    def release_lease(self, key: str, decoder: DecodeRoom) -> None:
        self.demand_same(lambda store: store.release_lease(key, decoder.key))

    @rule(credits_held=PAIRS, leases_held=PAIRS, ttl=TTL_S)
    def renew(
        self, credits_held: list[tuple[str, str]], leases_held: list[tuple[str, str]], ttl: float
    ) -> None:
        self.demand_same(lambda store: store.renew(credits_held, leases_held, ttl))

    @rule(credits_held=HOLDS, leases_held=HOLDS, ttl=TTL_S)
    def take_holds(self, credits_held: list[Hold], leases_held: list[Hold], ttl: float) -> None:
        self.demand_same(lambda store: store.take_holds(credits_held, leases_held, ttl))

    @rule(worker=st.sampled_from(["w1", "w2"]), incarnation=st.sampled_from("ab"), ttl=TTL_S)
    def register(self, worker: str, incarnation: str, ttl: float) -> None:
        record = WorkerRecord(worker, incarnation, "decode", "127.0.0.1:1", "f", "demo", 16, 64)
        self.run_async(self.store.register_worker(record, ttl))
        self.registered[worker] = record, self.now_ms + round(ttl * 1000)

    @rule(worker=st.sampled_from(["w1", "w2"]), incarnation=st.sampled_from("ab"))
    def unregister(self, worker: str, incarnation: str) -> None:
        self.run_async(self.store.unregister_worker(worker, incarnation))
        if worker in self.registered and self.registered[worker][0].incarnation == incarnation:
            del self.registered[worker]

    @rule()
    def look(self) -> None:
        listed = [record for _, (record, expiry) in sorted(self.registered.items()) if expiry > self.now_ms]
        assert self.run_async(self.store.list_workers()) == listed
        self.demand_same(lambda store: store.queue_status())
        for key in ("p1:a", "p2:a"):
            self.demand_same(lambda store, key=key: store.credits(key))  # type: ignore[misc]  # as above
        for key in ("d1:a", "d2:a", "d3:a"):
            self.demand_same(lambda store, key=key: store.leases(key))  # type: ignore[misc]  # as above

    @invariant()
    def sums_are_those_of_the_entries(self) -> None:
        found, waiting, granted, *kept = self._read(
            lambda pipe: pipe.hgetall(keys.entries()),
            lambda pipe: pipe.zrange(keys.queue(), 0, -1),
            lambda pipe: pipe.zrange(keys.grants(), 0, -1),
            *(lambda pipe, name=name: pipe.hgetall(name) for name in keys.queue_sums()),
        )
        entries = {key: value.split() for key, value in found.items()}
        assert set(waiting) | set(granted) == set(entries)
        for totals, width in zip(kept, BUCKETS, strict=True):
            sums: Counter[str] = Counter()
            for key in waiting:
                sums[str(int(entries[key][0]) // width)] += int(entries[key][1])
            numbers = {field: int(total) for field, total in totals.items()}
            assert numbers == {field: total for field, total in sums.items() if total}

    @invariant()
    def turns_are_those_of_the_entries(self) -> None:
        waiting, seats, expiries, tenants, lanes, turns = self._read(
            lambda pipe: pipe.zrange(keys.queue(), 0, -1),
            lambda pipe: pipe.hgetall(keys.turns()[0]),
            lambda pipe: pipe.zrange(keys.turns()[1], 0, -1),
            lambda pipe: pipe.hgetall(keys.turns()[2]),
            lambda pipe: pipe.zrange(keys.turns()[3], 0, -1),
            lambda pipe: pipe.zrange(keys.turns()[4], 0, -1, withscores=True),
        )
        sums: Counter[str] = Counter()
        for key, share in seats.items():
            sums[tenant_of(key)] += int(share)
        assert set(seats) == set(expiries)
        assert {tenant: int(total) for tenant, total in tenants.items()} == dict(sums)
        places = [re.split("[\0 ]", member) for member in lanes]
        assert sorted(key for *_, key in places) == sorted(waiting)
        first: dict[tuple[str, str], str] = {}
        for tenant, slo_class, score, key in places:
            if tenant != "\1":
                first.setdefault((slo_class, tenant), f"{score} {key}")
        expected = {
            place: int(slo_class) * 2**40 + sums[tenant] for (slo_class, tenant), place in first.items()
        }
        assert dict(turns) == expected

    @invariant()
    def ledgers_add_up(self) -> None:
        names = [keys.credits_of(key) for key in ("p1:a", "p2:a")]
        names += [keys.leases_of(key) for key in ("d1:a", "d2:a", "d3:a")]
        for ledger in self._read(*(lambda pipe, name=name: pipe.hgetall(name) for name in names)):
            fields = {key: value.split() for key, value in ledger.items()}
            total, soonest = fields.pop("", ("0", "0"))
            assert int(total) == sum(int(amount) for amount, _ in fields.values())
            assert int(soonest) <= min((int(expiry) for _, expiry in fields.values()), default=0)

    def _read(self, *calls: Callable[[Any], Any]) -> list[Any]:
        """Return what Redis answers to all of these, in one round trip: there are thousands of steps."""
        with self.admin.pipeline(transaction=False) as pipe:
            for call in calls:
                call(pipe)
            return list(pipe.execute())


async def _answers(operations: Iterable[Operation], store: AnyStore) -> list[object]:
    return await asyncio.gather(*(_answer(operation, store) for operation in operations))


async def _answer(operation: Operation, store: AnyStore) -> object:
    try:
        return await operation(store)
    except QueueFull as full:
        return str(full)


def test_both_stores_answer_the_same(on_the_tests_clock: None, redis_url: str) -> None:
    with asyncio.Runner() as runner, contextlib.closing(_admin(redis_url)) as admin:
        store = runner.run(Store.connect(redis_url))

        class Machine(SideBySide):
            def __init__(self) -> None:
                super().__init__(store, admin, runner.run)

        run_state_machine_as_test(
            Machine,
            settings=hypothesis.settings(max_examples=60, stateful_step_count=40),
        )
        runner.run(store.close())


class Charge(NamedTuple):
    """A charge of one tenant; a refund if `lead` is None."""

    after_ms: int
    tenant: str
    tokens: float
    band: float
    lead: float | None
    request: str = ""


CHARGES = st.builds(
    Charge,
    st.sampled_from([0, 1, ACTIVE_MS // 2, ACTIVE_MS - 1, ACTIVE_MS, CHARGED_MS]),
    st.sampled_from(["", "a", "b", "c"]),
    st.one_of(st.integers(0, 9), st.floats(0, 1e6), st.sampled_from([0.1, 1e17])),
    st.sampled_from([3.5, 1e5, math.inf]),
    st.sampled_from([0.0, 5.0, 1e5, math.inf, None]),
    st.sampled_from(["", "a/1", "a/2"]),
)


def test_both_stores_charge_tenants_the_same(on_the_tests_clock: None, redis_url: str) -> None:
    with asyncio.Runner() as runner, contextlib.closing(_admin(redis_url)) as admin:
        store = runner.run(Store.connect(redis_url))

        @hypothesis.settings(max_examples=200)
        @hypothesis.given(st.lists(CHARGES, min_size=5, max_size=30))
        def same(charges: list[Charge]) -> None:
            _charge_both(SideBySide(store, admin, runner.run), charges)

        same()
        runner.run(store.close())


def test_both_stores_remember_as_many_leads(on_the_tests_clock: None, redis_url: str) -> None:
    charges = [Charge(0, f"t{i:04}", i // 9, math.inf, math.inf) for i in range(MAX_DEBTS + 20)]
    charges += [Charge(wait_ms, "t0000", 0, math.inf, math.inf) for wait_ms in (ACTIVE_MS - 1, 1)]
    charges += [Charge(0, f"t{i:04}", 0, math.inf, 0.0) for i in range(35)]
    with asyncio.Runner() as runner, contextlib.closing(_admin(redis_url)) as admin:
        store = runner.run(Store.connect(redis_url))
        _charge_both(SideBySide(store, admin, runner.run), charges)
        runner.run(store.close())


def _charge_both(both: SideBySide, charges: Iterable[Charge]) -> None:
    for after_ms, tenant, tokens, band, lead, request in charges:
        both.pass_time(after_ms)
        if lead is None:
            both.demand_same(lambda store: store.refund_tenant(tenant, tokens, request))  # noqa: B023 -- called at once
        else:
            both.demand_same(lambda store: store.charge_tenant(tenant, tokens, lead, band, request))  # noqa: B023 -- as above
        counters, expiries, debts = (set(both.admin.zrange(name, 0, -1)) for name in keys.shares())
        assert counters == expiries
        assert not counters & debts
    both.teardown()


def _admin(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, decode_responses=True)
