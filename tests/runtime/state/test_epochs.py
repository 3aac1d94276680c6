"""A Redis that comes back is entered anew: what it remembers is not believed, what it forgot is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

import pytest
import redis.asyncio

from runtime.state import connection, keys
from runtime.state.records import LEASE_TTL_S, Grant, Hold, Notice
from runtime.state.store import LEDGERS_AT_ONCE, Store
from tests.patience import PATIENCE_S
from tests.redis_server import RedisServer, redis_server
from tests.runtime.state.common import DECODE, PREFILL, entry, subscribed
from tests.runtime.state.given_clock import NOW_KEY, START_MS


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as one:
        yield one


@pytest.fixture
async def peers(server: RedisServer) -> AsyncIterator[tuple[Store, Store]]:
    """Two processes of a fleet, both in the epoch."""
    stores = await Store.connect(server.url), await Store.connect(server.url)
    for store in stores:
        await store.list_workers()
    yield stores
    for store in stores:
        await store.close()


async def grants(server: RedisServer, store: Store, *, wait: bool) -> list[Grant]:
    """Return what is granted, with `wait` once nothing holds grants back any more."""
    if wait:
        async with redis.asyncio.Redis.from_url(server.url) as admin:
            await admin.hdel(keys.epoch(), "quiet_until")
    return await store.grant("r1", PREFILL, [DECODE])


async def test_what_was_saved_to_disk_is_not_believed(
    server: RedisServer, peers: tuple[Store, Store]
) -> None:
    store, _ = peers
    await store.enqueue(entry("old"), 10)
    async with redis.asyncio.Redis.from_url(server.url) as admin:
        await admin.save()
    server.stop(kill=True)
    server.start()
    forgotten: list[None] = []
    store.on_new_epoch(lambda: forgotten.append(None))
    await _until_it_answers(server)
    assert (await store.queue_status()).waiting == 0
    assert len(forgotten) == 1


async def test_each_peer_hears_once_that_all_was_forgotten(
    server: RedisServer, peers: tuple[Store, Store]
) -> None:
    heard: list[str] = []
    for name, store in zip("ab", peers, strict=True):
        store.on_new_epoch(lambda name=name: heard.append(name))  # type: ignore[misc]  # a default has no annotation
    await _forget(server)
    for _ in range(2):
        for store in peers:
            await store.list_workers()
    assert heard == ["a", "b"]


async def test_a_process_that_starts_forgets_nothing(server: RedisServer, peers: tuple[Store, Store]) -> None:
    await peers[0].enqueue(entry("waiting"), 10)
    newcomer = await Store.connect(server.url)
    assert (await newcomer.queue_status()).waiting == 1
    await newcomer.close()


async def test_nothing_is_granted_before_others_could_report_their_holds(
    server: RedisServer, peers: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_ms = round(1000 * PATIENCE_S)
    monkeypatch.setattr(connection, "QUIET_MS", quiet_ms)  # it is not to be over before it is looked at
    first, second = peers
    heard = await subscribed(first, "r1")
    await _forget(server)
    await first.enqueue(entry("new", router="r1", tokens=1), 10)
    assert await grants(server, first, wait=False) == []
    async with redis.asyncio.Redis.from_url(server.url) as admin:
        seconds, micros = await admin.time()
        quiet_until = int(await admin.hget(keys.epoch(), "quiet_until") or 0)
    assert 0 < quiet_until - (seconds * 1000 + micros // 1000) <= quiet_ms

    await second.take_holds([], [Hold("running", DECODE.key, DECODE.num_blocks)], ttl_s=30)
    assert await grants(server, first, wait=True) == [], "all blocks are leased again"
    await second.release_lease("running", DECODE.key)
    assert [grant.request_key for grant in await grants(server, first, wait=True)] == ["new"]
    await heard.aclose()


class Routers:
    """Two routers that have seen each other, on a clock that only `pass_time` moves."""

    def __init__(self, url: str) -> None:
        self.admin = redis.asyncio.Redis.from_url(url)
        self.now_ms = START_MS
        self.first: Store
        self.second: Store
        self._heard: list[AsyncGenerator[Notice, None]] = []

    async def start(self, url: str) -> None:
        self.first, self.second = await Store.connect(url), await Store.connect(url)
        self._heard = [await subscribed(self.first, "r1"), await subscribed(self.second, "r2")]
        for name, store in (("r1", self.first), ("r2", self.second)):
            await store.watch_routers(name)

    async def pass_time(self, seconds: int) -> None:
        """Let the second router be away, and the first one call each second."""
        for _ in range(seconds):
            self.now_ms += 1000
            await self.admin.set(NOW_KEY, self.now_ms)
            await self.first.queue_status()

    async def granted(self) -> list[str]:
        return [grant.request_key for grant in await self.first.grant("r1", PREFILL, [DECODE])]

    async def close(self) -> None:
        for heard in self._heard:
            await heard.aclose()
        await self.first.close()
        await self.second.close()
        await self.admin.aclose()


@pytest.fixture
async def routers(on_the_tests_clock: None, server: RedisServer) -> AsyncIterator[Routers]:
    both = Routers(server.url)
    await both.start(server.url)
    yield both
    await both.close()


async def test_nothing_is_granted_while_a_router_that_was_seen_is_away(
    server: RedisServer, routers: Routers
) -> None:
    await _forget(server)
    await routers.first.enqueue(entry("new", tokens=1), 10)
    await routers.pass_time(5)
    assert await routers.granted() == []
    await routers.second.take_holds([], [Hold("running", DECODE.key, DECODE.num_blocks)], ttl_s=30)
    await routers.pass_time(2)
    assert await routers.granted() == [], "all blocks are leased again"
    await routers.second.release_lease("running", DECODE.key)
    assert await routers.granted() == ["new"]


async def test_a_router_that_stays_away_is_awaited_until_its_holds_expire(
    server: RedisServer, routers: Routers
) -> None:
    await _forget(server)
    await routers.first.enqueue(entry("new", tokens=1), 10)
    await routers.pass_time(round(LEASE_TTL_S) - 1)
    assert await routers.granted() == []
    await routers.pass_time(2)
    assert await routers.granted() == ["new"]


async def test_no_newcomer_is_leased_at_once_while_a_router_is_away(
    server: RedisServer, routers: Routers
) -> None:
    await _forget(server)
    await routers.pass_time(5)
    assert not await routers.first.lease_at_once(entry("new", tokens=1), PREFILL, DECODE, 30)
    await routers.second.queue_status()
    await routers.pass_time(2)
    assert await routers.first.lease_at_once(entry("new", tokens=1), PREFILL, DECODE, 30)


async def test_once_all_routers_are_back_grants_go_on(server: RedisServer, routers: Routers) -> None:
    await _forget(server)
    await routers.first.enqueue(entry("new", tokens=1), 10)
    await routers.second.queue_status()
    assert await routers.granted() == []
    await routers.pass_time(2)
    assert await routers.granted() == ["new"]


async def test_what_is_held_of_many_workers_is_entered_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a busy router would not have entered it when grants go on."""
    run = store._run
    under_way: list[str] = []
    most = 0

    async def counted(script: str, script_keys: Sequence[str], args: Sequence[str | int]) -> object:
        nonlocal most
        under_way.append(script)
        most = max(most, len(under_way))
        answer = await run(script, script_keys, args)
        under_way.remove(script)
        return answer

    monkeypatch.setattr(store, "_run", counted)
    held = [Hold(f"r{number}", f"w{number}:1", 1) for number in range(100)]
    await store.take_holds(held, held, ttl_s=30)
    assert most == LEDGERS_AT_ONCE, "bounded, too: the loop has other things to do"
    assert all([await store.leases(hold.worker_key) == {hold.request_key: 1} for hold in held])


async def test_what_is_held_is_not_entered_twice(store: Store) -> None:
    await store.take_holds([Hold("q", "p:1", 5)], [Hold("q", "d:1", 3)], ttl_s=30)
    await store.take_holds([Hold("q", "p:1", 7)], [Hold("q", "d:1", 4)], ttl_s=30)
    assert await store.credits("p:1") == {"q": 5}
    assert await store.leases("d:1") == {"q": 3}


async def _forget(server: RedisServer) -> None:
    async with redis.asyncio.Redis.from_url(server.url) as admin:
        await admin.flushall()


async def _until_it_answers(server: RedisServer) -> None:
    probe = await Store.connect(server.url)
    await probe.close()
