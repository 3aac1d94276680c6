"""Blocks that a device copies to host memory beside the steps: they count as there before they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling.memory.tiers import Tier
from tests.kvtransfer.tiers.driving import (
    BLOCK_BYTES,
    Driven,
    Gate,
    content_of,
    memory_pool,
    name_of,
    opened,
    read_to_end,
)
from tests.patience import PATIENCE_S


def under_way(tiers: Driven, *numbers: int) -> None:
    """Let blocks leave the pool together, whose copies are not over until `land`."""
    tiers.late.gate.clear()
    tiers.begin(numbers)


def land(tiers: Driven) -> None:
    tiers.late.gate.set()
    assert tiers.wait_until_written(PATIENCE_S)


@pytest.fixture
def tiers() -> Iterator[Driven]:
    """Host memory for three blocks."""
    with opened(None, most_in_host=3, is_late=True) as made:
        yield made
        made.late.gate.set()


def test_steps_do_not_wait_for_copies_and_readers_do(tiers: Driven) -> None:
    under_way(tiers, 1, 2)
    assert tiers.late.batches == [2], "what leaves together is copied together"
    assert tiers.num_leading([1, 2]) == 2
    assert tiers.told_of[Tier.HOST] == {name_of(1), name_of(2)}
    ended = threading.Event()
    read = tiers.read([4, 5], [name_of(1), name_of(2)], ended.set)
    assert not ended.is_set()
    land(tiers)
    assert ended.wait(PATIENCE_S)
    assert read.stop() == 2
    assert [bytes(tiers.pool.block_bytes_view(block)) for block in (4, 5)] == [content_of(1), content_of(2)]


def test_the_last_blocks_are_kept_if_there_is_no_room_for_all(tiers: Driven) -> None:
    """The beginning of a prefix leaves behind what follows it, which is of no use without it."""
    tiers.put(0)
    tiers.begin([1, 2, 3, 4, 5])
    assert tiers.wait_until_written(PATIENCE_S)
    assert [number for number in range(6) if tiers.has(number)] == [3, 4, 5]
    assert (tiers.of_host["dropped"], tiers.of_host["evicted"], tiers.of_host["kept"]) == (2, 1, 4)
    assert tiers.get([3, 4, 5]) == 3


def test_blocks_that_arrive_do_not_make_room_for_others(tiers: Driven) -> None:
    tiers.put(0)
    under_way(tiers, 1, 2)
    tiers.begin([3])
    assert not tiers.has(0)
    tiers.begin([4])
    assert tiers.of_host["dropped"] == 1
    land(tiers)
    assert tiers.get([1, 2, 3]) == 3
    tiers.put(4)
    assert [number for number in range(5) if tiers.has(number)] == [1, 2, 4], "3 was read first"


def test_the_slot_of_a_forgotten_block_is_free_after_its_copy(tiers: Driven) -> None:
    under_way(tiers, 1, 2, 3)
    tiers.forget(name_of(2))
    assert not tiers.has(2)
    tiers.begin([4])
    assert not tiers.has(4), "a copy still writes to the place"
    land(tiers)
    tiers.put(4)
    assert tiers.get([1]) == tiers.get([3]) == tiers.get([4]) == 1


def test_a_block_that_comes_again_has_one_slot(tiers: Driven) -> None:
    under_way(tiers, 1)
    tiers.forget(name_of(1))
    tiers.begin([1])
    land(tiers)
    assert tiers.get([1]) == 1
    assert tiers._memory.num_free == 2


@pytest.mark.parametrize("place", range(3))
def test_blocks_before_a_damaged_one_come(tiers: Driven, place: int) -> None:
    names = [name_of(number) for number in (1, 2, 3)]
    tiers.begin([1, 2, 3])
    assert tiers.wait_until_written(PATIENCE_S)
    slot = tiers._memory.find(names[place])
    assert slot is not None
    tiers._memory.data(slot)[5] ^= 1
    assert read_to_end(tiers, [4, 5, 6], names) == place
    expected = [content_of(number) for number in (1, 2, 3)[:place]]
    expected += [bytes(BLOCK_BYTES)] * (3 - place)
    assert [bytes(tiers.pool.block_bytes_view(block)) for block in (4, 5, 6)] == expected
    assert (tiers.of_host["read"], tiers.of_host["refused"]) == (place, 1)
    assert [tiers.has(number) for number in (1, 2, 3)] == [number != place for number in range(3)]
    assert not any(tiers._memory._num_pins)


def test_a_copy_that_fails_leaves_nothing(tiers: Driven) -> None:
    tiers.put(0)
    under_way(tiers, 1, 2)
    ended = threading.Event()
    read = tiers.read([4], [name_of(1)], ended.set)
    tiers.late.error = RuntimeError("CUDA error: unspecified launch failure")
    land(tiers)
    assert ended.wait(PATIENCE_S)
    assert read.stop() == 0
    tiers.late.error = None
    assert [number for number in range(3) if tiers.has(number)] == [0]
    assert tiers.told_of[Tier.HOST] == {name_of(0)}
    assert tiers.of_host["dropped"] == 2
    for number in (1, 2):
        tiers.put(number)
    assert tiers.get([0, 1, 2]) == 3


def test_copies_that_cannot_be_queued_leave_nothing(tiers: Driven) -> None:
    tiers.put(0)
    tiers.late.refuses = True
    tiers.begin([1, 2])
    tiers.late.refuses = False
    assert [number for number in range(3) if tiers.has(number)] == [0]
    assert tiers.told_of[Tier.HOST] == {name_of(0)}
    assert tiers.of_host["dropped"] == 2
    tiers.begin([1, 2])
    assert tiers.get([0, 1, 2]) == 3


def test_a_copy_back_that_fails_ends_its_read_and_no_other(tiers: Driven) -> None:
    tiers.put(1)
    tiers.late.error = RuntimeError("CUDA error: out of memory")
    assert read_to_end(tiers, [4], [name_of(1)]) == 0
    tiers.late.error = None
    assert tiers.get([1]) == 1


def test_nothing_is_copied_to_blocks_that_steps_still_use(tiers: Driven) -> None:
    """And who stops the read waits for neither."""
    tiers.put(1)
    behind, ended = Gate(), threading.Event()
    read = tiers.read([4], [name_of(1)], ended.set, behind)
    assert behind.is_awaited.wait(PATIENCE_S)
    assert read.num_done == 0
    never = Gate()
    assert tiers.read([5], [name_of(1)], lambda: None, never).stop() == 0
    behind.reach()
    assert ended.wait(PATIENCE_S)
    assert read.stop() == 1
    assert bytes(tiers.pool.block_bytes_view(4)) == content_of(1)
    never.reach()
    assert tiers.get([1]) == 1, "the one before is over"
    assert bytes(tiers.pool.block_bytes_view(5)) == bytes(BLOCK_BYTES)


def test_reads_stopped_before_they_begin_show_no_speed(tiers: Driven) -> None:
    tiers.put(1)
    expected_s = tiers.expected_s(1)
    for _ in range(20):
        behind = Gate()
        read = tiers.read([4], [name_of(1)], lambda: None, behind)
        assert behind.is_awaited.wait(PATIENCE_S)
        assert read.stop() == 0
        behind.reach()
    assert read_to_end(tiers, [4], [name_of(2)]) == 0, "those before are over"
    assert tiers.expected_s(1) == expected_s


def test_what_leaves_for_the_disk_is_written_once_it_has_landed(tmp_path: Path) -> None:
    with opened(tmp_path, is_late=True) as tiers:
        under_way(tiers, 1, 2)
        assert tiers.num_leading([1, 2]) == 2
        assert not tiers.wait_until_written(0)
        land(tiers)
        assert tiers.counts["written"] == 2
        assert tiers.get([1, 2]) == 2
        assert tiers.counts["read"] == 2


def test_the_oldest_leave_for_the_disk_while_others_arrive(tmp_path: Path) -> None:
    with opened(tmp_path, most_in_host=2, is_late=True) as tiers:
        tiers.put(1)
        tiers.put(2)
        under_way(tiers, 3, 4, 5)
        assert [number for number in range(1, 6) if tiers.has(number)] == [1, 2, 3, 4, 5]
        land(tiers)
        assert [number for number in range(1, 6) if tiers.has_in_host(number)] == [4, 5]
        assert tiers.get([1, 2, 3, 4, 5]) == 5


def test_at_the_end_all_are_written_that_are_cached_or_arriving(tmp_path: Path) -> None:
    pool = memory_pool(4)
    tiers = Driven(tmp_path, most_in_host=3, pool=pool, is_late=True).open()
    under_way(tiers, 1)
    pool.block_bytes_view(2)[:] = content_of(7)
    closing = threading.Thread(target=tiers.close, args=([(2, name_of(7))], PATIENCE_S))
    closing.start()
    tiers.late.gate.set()
    closing.join()
    with opened(tmp_path, is_late=True) as again:
        assert again.get([7, 1]) == 2


def test_a_device_that_hangs_is_not_waited_for_at_the_end(tmp_path: Path) -> None:
    tiers = Driven(tmp_path, most_in_host=3, is_late=True).open()
    tiers.put(1)
    under_way(tiers, 2)
    tiers.close([], 0.01)
    tiers.late.gate.set()
    assert tiers.wait_until_written(PATIENCE_S)
