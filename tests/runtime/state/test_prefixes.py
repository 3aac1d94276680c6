"""The prefix directory knows which leading blocks of a prompt a worker has."""

from __future__ import annotations

from runtime.state.records import Leading
from runtime.state.store import SETS_AT_ONCE, Store
from scheduling.memory.tiers import Tier


async def cached(store: Store, worker_keys: list[str], hashes: list[bytes]) -> dict[str, int]:
    found = await store.lookup_prefix(worker_keys, hashes)
    assert not any(leading.on_disk for leading in found.values())
    return {key: leading.cached for key, leading in found.items()}


async def test_the_prefix_directory_counts_leading_blocks(store: Store) -> None:
    hashes = [bytes([i]) * 16 for i in range(4)]
    await store.publish_prefix("a:1", hashes, [])
    await store.publish_prefix("b:1", [hashes[0], hashes[2]], [])
    assert await cached(store, ["a:1", "b:1", "c:1"], hashes) == {"a:1": 4, "b:1": 1, "c:1": 0}
    await store.publish_prefix("a:1", [], [hashes[1]])
    assert await cached(store, ["a:1"], hashes) == {"a:1": 1}


async def test_a_long_prefix_is_looked_up_in_pieces_of_those_that_hold_it(store: Store) -> None:
    hashes = [number.to_bytes(16) for number in range(5000)]
    held = {"all:1": 5000, "most:1": 4097, "some:1": 1700, "few:1": 3, "none:1": 0}
    for worker_key, count in held.items():
        await store.publish_prefix(worker_key, hashes[:count], [])
    await store.publish_prefix("few:1", hashes[5:], [])
    assert await cached(store, list(held), hashes) == held
    assert await cached(store, list(held), []) == dict.fromkeys(held, 0)
    assert await cached(store, [], hashes) == {}


async def test_each_of_many_workers_gets_its_own_count(store: Store) -> None:
    hashes = [number.to_bytes(16) for number in range(20)]
    held = {f"w{number}:1": number % 7 for number in range(2 * SETS_AT_ONCE + 3)}
    for worker_key, count in held.items():
        await store.publish_prefix(worker_key, hashes[:count], [])
    assert await cached(store, list(held), hashes) == held


async def test_the_directory_counts_blocks_on_disk_behind_memory(store: Store) -> None:
    hashes = [number.to_bytes(16) for number in range(3000)]
    await store.publish_prefix("both:1", hashes[:700], [])
    await store.publish_prefix("both:1", hashes[500:2100], [], Tier.DISK)
    await store.publish_prefix("disk:1", hashes[:2900], [], Tier.DISK)
    await store.publish_prefix("gap:1", hashes[:3], [])
    await store.publish_prefix("gap:1", hashes[4:], [], Tier.DISK)
    workers = ["both:1", "disk:1", "gap:1", "none:1"]
    assert await store.lookup_prefix(workers, hashes, {Tier.DISK: {"both:1", "disk:1", "gap:1"}}) == {
        "both:1": Leading(700, 1400),
        "disk:1": Leading(0, 2900),
        "gap:1": Leading(3),
        "none:1": Leading(0),
    }
    # A worker that announces no disk is not asked for it.
    assert await cached(store, workers, hashes) == {"both:1": 700, "disk:1": 0, "gap:1": 3, "none:1": 0}
    await store.publish_prefix("disk:1", [], hashes[1:2], Tier.DISK)
    assert await store.lookup_prefix(["disk:1"], hashes, {Tier.DISK: {"disk:1"}}) == {"disk:1": Leading(0, 1)}


async def test_host_memory_counts_between_the_pool_and_the_disk(store: Store) -> None:
    hashes = [number.to_bytes(16) for number in range(3000)]
    held = {
        "all:1": {Tier.POOL: range(700), Tier.HOST: range(500, 1500), Tier.DISK: range(1500, 2800)},
        "host:1": {Tier.HOST: range(2900)},
        "mixed:1": {Tier.POOL: range(2), Tier.DISK: range(2, 3), Tier.HOST: range(3, 9)},
        "gap:1": {Tier.HOST: range(2), Tier.DISK: range(3, 9)},
    }
    for worker_key, tiers in held.items():
        for tier, places in tiers.items():
            await store.publish_prefix(worker_key, [hashes[place] for place in places], [], tier)
    having = {tier: {key for key, tiers in held.items() if tier in tiers} for tier in (Tier.HOST, Tier.DISK)}
    assert await store.lookup_prefix(list(held), hashes, having) == {
        "all:1": Leading(700, 1300, 800),
        "host:1": Leading(0, 0, 2900),
        # What is behind a block on the disk counts as if it were there, too: it is read after that one.
        "mixed:1": Leading(2, 7),
        "gap:1": Leading(0, 0, 2),
    }
