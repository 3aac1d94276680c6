"""Blocks in host memory: kept within the budget, verified, passed on to the disk; nobody waits for either."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtransfer.tiers.copies import InPlaceCopies, TierCopies
from kvtransfer.tiers.host_memory import HostMemory
from kvtransfer.tiers.tiers import Tiers
from scheduling.memory.tiers import Tier
from tests.kvtransfer.tiers.driving import (
    BLOCK_BYTES,
    Driven,
    LateCopies,
    MemoryPool,
    content_of,
    memory_pool,
    name_of,
    opened,
    read_to_end,
)
from tests.patience import PATIENCE_S


def damage(tiers: Driven, number: int) -> None:
    """Flip a bit of a block in host memory."""
    slot = tiers._memory.find(name_of(number))
    assert slot is not None
    tiers._memory.data(slot)[number % BLOCK_BYTES] ^= 0x10


def test_a_block_that_left_the_pool_comes_back() -> None:
    with opened(None, most_in_host=3) as tiers:
        for number in (1, 2):
            tiers.put(number)
        assert tiers.get([2, 1]) == 2
        assert tiers.of_host["kept"] == tiers.of_host["read"] == 2
        assert tiers.of_host["kept bytes"] == tiers.of_host["read bytes"] == 2 * BLOCK_BYTES
        assert tiers.present == (Tier.HOST,)


@settings(max_examples=60, deadline=None)
@given(
    is_late=st.booleans(),
    most=st.integers(1, 4),
    actions=st.lists(st.tuples(st.sampled_from(["put", "get", "forget"]), st.integers(0, 6))),
)
def test_the_budget_holds_and_the_least_recently_used_go(
    is_late: bool, most: int, actions: list[tuple[str, int]]
) -> None:
    expected: OrderedDict[int, None] = OrderedDict()
    with opened(None, most_in_host=most, is_late=is_late) as tiers:
        for action, number in actions:
            match action:
                case "put":
                    tiers.put(number)
                    expected[number] = None
                    expected.move_to_end(number)
                    if len(expected) > most:
                        expected.popitem(last=False)
                case "get":
                    assert tiers.get([number]) == (number in expected)
                    if number in expected:
                        expected.move_to_end(number)
                case "forget":
                    tiers.forget(name_of(number))
                    expected.pop(number, None)
            assert [number for number in range(7) if tiers.has(number)] == sorted(expected)
            assert tiers.state(Tier.HOST).num_blocks == len(expected) <= most
            assert tiers.told_of[Tier.HOST] == {name_of(number) for number in expected}


@settings(max_examples=40, deadline=None)
@given(
    is_late=st.booleans(),
    most=st.integers(1, 3),
    most_in_host=st.integers(0, 3),
    actions=st.lists(st.tuples(st.sampled_from(["put", "get", "forget", "reopen"]), st.integers(0, 6))),
)
def test_what_is_found_is_what_was_told_and_comes_back_right(
    is_late: bool, most: int, most_in_host: int, actions: list[tuple[str, int]]
) -> None:
    """In both tiers, each within its budget."""
    folder, known = Path(tempfile.mkdtemp()), set[int]()
    tiers = Driven(folder, most=most, most_in_host=most_in_host, is_late=is_late).open()
    try:
        for action, number in actions:
            match action:
                case "put":
                    tiers.put(number)
                    known.add(number)
                    assert tiers.has(number)
                case "get":
                    assert tiers.get([number]) == tiers.has(number)
                case "forget":
                    tiers.forget(name_of(number))
                    known.discard(number)
                    assert not tiers.has(number)
                case "reopen":
                    tiers.close([], PATIENCE_S)
                    tiers = Driven(folder, most=most, most_in_host=most_in_host, is_late=is_late).open()
            found = {number for number in range(7) if tiers.has(number)}
            assert found <= known
            assert {name_of(number) for number in found} == tiers.told_of[Tier.HOST] | tiers.told
            assert len(tiers.told) <= most
            assert len(tiers.told_of[Tier.HOST]) <= most_in_host
    finally:
        tiers.close([], PATIENCE_S)
        shutil.rmtree(folder)


def test_what_has_no_room_in_memory_is_on_the_disk(tmp_path: Path) -> None:
    with opened(tmp_path, most_in_host=2) as tiers:
        for number in range(5):
            tiers.put(number)
        assert [number for number in range(5) if tiers.has_in_host(number)] == [3, 4]
        assert tiers.counts["written"] == tiers.of_host["evicted"] == 3
        assert tiers.get(range(5)) == 5
        assert (tiers.of_host["read"], tiers.counts["read"]) == (2, 5)


def test_blocks_on_the_disk_are_not_written_again(tmp_path: Path) -> None:
    with opened(tmp_path, most_in_host=1) as tiers:
        for number in (1, 2, 1, 2, 1):
            tiers.put(number)
        assert tiers.counts["written"] == 2
        assert tiers.of_host["kept"] == 5


def test_a_damaged_block_is_refused_and_what_follows_it_does_not_come() -> None:
    with opened(None, most_in_host=3) as tiers:
        for number in (1, 2, 3):
            tiers.put(number)
        damage(tiers, 2)
        tiers.pool.block_bytes_view(5)[:] = tiers.pool.block_bytes_view(6)[:] = bytes(BLOCK_BYTES)
        assert read_to_end(tiers, [4, 5, 6], [name_of(number) for number in (1, 2, 3)]) == 1
        assert bytes(tiers.pool.block_bytes_view(5)) == bytes(BLOCK_BYTES)
        assert tiers.counts["refused"] == 1
        assert [tiers.has(number) for number in (1, 2, 3)] == [True, False, True]
        assert name_of(2) not in tiers.told_of[Tier.HOST]
        tiers.put(2)
        assert tiers.get([1, 2, 3]) == 3


def test_damage_in_memory_is_found_on_the_disk(tmp_path: Path) -> None:
    with opened(tmp_path, most_in_host=1) as tiers:
        tiers.put(1)
        damage(tiers, 1)
        tiers.put(2)
        assert not tiers.has_in_host(1)
        assert tiers.get([1]) == 0
        assert tiers.counts["refused"] == 1
        assert not tiers.has(1)


def test_a_damaged_block_is_read_from_the_disk_if_it_is_there(tmp_path: Path) -> None:
    with opened(tmp_path, most_in_host=1) as tiers:
        for number in (1, 2, 1):
            tiers.put(number)
        damage(tiers, 1)
        assert tiers.get([1]) == 1
        assert tiers.of_host["refused"] == 1


@pytest.fixture
def reader_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The reader of host memory waits before it verifies; the events say that it does, and let it go on."""
    reached, go_on, real = threading.Event(), threading.Event(), HostMemory.is_intact

    def is_intact(memory: HostMemory, slot: int) -> bool:
        reached.set()
        assert go_on.wait(PATIENCE_S)
        return real(memory, slot)

    monkeypatch.setattr(HostMemory, "is_intact", is_intact)
    yield reached, go_on
    go_on.set()


@pytest.mark.parametrize("most_in_host", [1, 2])
def test_a_block_that_is_being_read_stays_while_others_come(
    reader_waits: tuple[threading.Event, threading.Event], most_in_host: int
) -> None:
    reached, go_on = reader_waits
    with opened(None, most_in_host=most_in_host) as tiers:
        tiers.put(1)
        ended = threading.Event()
        read = tiers.read([4], [name_of(1)], ended.set)
        assert reached.wait(PATIENCE_S)
        for number in (2, 3, 4, 5):
            tiers.put(number)
        go_on.set()
        assert ended.wait(PATIENCE_S)
        assert read.stop() == 1
        assert bytes(tiers.pool.block_bytes_view(4)) == content_of(1)
        assert tiers.counts["dropped"] == (4 if most_in_host == 1 else 0), "there was no other place"
        for number in (6, 7):
            tiers.put(number)
        assert not tiers.has(1), "its place is used again"


def test_a_block_is_forgotten_while_it_is_read(
    reader_waits: tuple[threading.Event, threading.Event],
) -> None:
    reached, go_on = reader_waits
    with opened(None, most_in_host=2) as tiers:
        tiers.put(1)
        ended = threading.Event()
        tiers.read([4], [name_of(1)], ended.set)
        assert reached.wait(PATIENCE_S)
        tiers.forget(name_of(1))
        assert not tiers.has(1)
        go_on.set()
        assert ended.wait(PATIENCE_S)
        for number in (2, 3):
            tiers.put(number)
        assert tiers.get([2, 3]) == 2


def test_a_read_that_is_stopped_writes_nothing_more(
    reader_waits: tuple[threading.Event, threading.Event],
) -> None:
    reached, go_on = reader_waits
    with opened(None, most_in_host=2) as tiers:
        tiers.put(1)
        read = tiers.read([4], [name_of(1)], lambda: None)
        assert reached.wait(PATIENCE_S)
        assert read.stop() == 0
        go_on.set()
        assert tiers.get([1]) == 1, "the one before is over"
        assert bytes(tiers.pool.block_bytes_view(4)) == bytes(BLOCK_BYTES)


def test_a_disk_that_hangs_stops_neither_steps_nor_reads_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks that have left memory and wait for the disk are found; beyond the staging memory they go."""
    go_on, real = threading.Event(), os.write

    def hang(fd: int, data: memoryview) -> int:
        assert go_on.wait(PATIENCE_S)
        return real(fd, data)

    with opened(tmp_path, most_in_host=2, pool=memory_pool(4)) as tiers:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", hang)
            for number in range(12):
                tiers.pool.block_bytes_view(0)[:] = content_of(number)
                tiers.keep([0], [name_of(number)])
            found = [number for number in range(12) if tiers.has(number)]
            assert found == [0, 1, 2, 3, 10, 11]
            assert tiers.counts["dropped"] == 6
            assert tiers.get([0, 11]) == 2
            go_on.set()
            assert tiers.wait_until_written(PATIENCE_S)
        assert [number for number in range(12) if tiers.has(number)] == found


def test_what_is_in_memory_can_be_read_alone_if_the_disk_is_slow(tmp_path: Path) -> None:
    with opened(tmp_path, most_in_host=2) as tiers:
        for number in (4, 3, 2, 1):
            tiers.put(number)
        in_host, in_both = tiers.readable([name_of(number) for number in (1, 2, 3, 4, 5)])
        host, disk = tiers.state(Tier.HOST), tiers.state(Tier.DISK)
        assert (in_host.num_blocks, in_both.num_blocks) == (2, 4)
        assert in_host.read_s == pytest.approx(host.wait_s + 2 * host.block_s)
        assert in_both.read_s == pytest.approx(in_host.read_s + disk.wait_s + 2 * disk.block_s)


def test_memory_is_used_before_the_disk_is_open(tmp_path: Path) -> None:
    first = Driven(tmp_path).open()
    second = Driven(tmp_path, most_in_host=1)
    second.start()
    for number in (1, 2):
        second.put(number)
    assert [second.has(number) for number in (1, 2)] == [False, True]
    assert second.get([2]) == 1
    first.close([], PATIENCE_S)
    assert second.wait_until_open(PATIENCE_S)
    second.put(3)
    assert [second.has(number) for number in (1, 2, 3)] == [False, True, True]
    second.close([], PATIENCE_S)


def test_a_restart_finds_on_the_disk_what_was_in_memory(tmp_path: Path) -> None:
    """First what the pool has cached, then what is in memory, the most recently used before others."""
    pool = memory_pool(3)
    tiers = Driven(tmp_path, most=5, most_in_host=4, pool=pool).open()
    for number in (1, 2, 3, 4):
        tiers.put(number)
    for block, number in enumerate((7, 4, 8)):
        pool.block_bytes_view(block)[:] = content_of(number)
    tiers.close([(block, name_of(number)) for block, number in enumerate((7, 4, 8))], PATIENCE_S)
    with opened(tmp_path, most=5, most_in_host=4) as again:
        assert [number for number in range(9) if again.has(number)] == [2, 3, 4, 7, 8]
        assert not again.told_of[Tier.HOST]
        assert again.get([7, 4, 8, 3, 2]) == 5
        again.put(9)
        for number in (10, 11, 12, 13):
            again.put(number)
        assert not again.has(2), "the least recently used one goes first"


def test_memory_alone_ends_with_the_worker() -> None:
    with opened(None, most_in_host=3) as tiers:
        tiers.put(1)
    with opened(None, most_in_host=3) as again:
        assert not again.has(1)
        assert not again.told_of[Tier.HOST]


def test_after_the_end_nothing_is_kept() -> None:
    tiers = Driven(None, most_in_host=3).open()
    tiers.close([], PATIENCE_S)
    tiers.keep([0], [name_of(1)])
    assert not tiers.has(1)


@pytest.mark.parametrize("host_bytes", [0, 1, BLOCK_BYTES - 1])
def test_a_budget_below_one_block_is_refused(host_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"a block takes {BLOCK_BYTES} bytes, {host_bytes} are allowed"):
        Tiers(memory_pool(), host_bytes)


def num_lines(call: Callable[[], object]) -> int:
    """Return how many lines of Python a call runs, without finalizers of what others left."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


@pytest.mark.parametrize("new_copies", [InPlaceCopies, LateCopies])
def test_the_cost_of_a_block_does_not_grow_with_the_number_of_blocks(
    new_copies: Callable[[MemoryPool, int], TierCopies],
) -> None:
    costs = []
    for most in (10, 30_000):
        pool = memory_pool(1)
        tiers = Tiers(pool, most * BLOCK_BYTES, new_copies=partial(new_copies, pool))
        for number in range(most):
            tiers.keep([0], [name_of(number)])
        names = [name_of(number) for number in range(most - 3, most)]
        calls: list[Callable[[], object]] = [
            lambda: tiers.keep([0], [name_of(10**9)]),  # noqa: B023  # called at once
            lambda: tiers.keep([0], [name_of(10**9)]),  # noqa: B023
            lambda: tiers.readable(names),  # noqa: B023
            lambda: tiers.forget(names[0]),  # noqa: B023
        ]
        costs.append([num_lines(call) for call in calls])
    assert costs[0] == costs[1]
    assert all(costs[0])
