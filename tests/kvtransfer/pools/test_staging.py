"""Handoffs between blocks on devices, through slots of host memory on both sides."""

import asyncio
from pathlib import Path

import pytest

from kvtransfer.errors import SenderAbortedError
from kvtransfer.handoff import End
from kvtransfer.transports.transport import TransportMode
from tests.kvtransfer.conftest import BOTH, until
from tests.kvtransfer.staged_pair import NUM_BLOCKS, settle, staged_pair

pytestmark = pytest.mark.integration

BLOCKS = (9, 3, 4, 5, 31, 0)
TARGETS = (1, 7, 6, 20, 21, 30)


@BOTH
async def test_every_byte_crosses_devices_and_every_slot_is_freed(
    mode: TransportMode, tmp_path: Path
) -> None:
    async with staged_pair(tmp_path, mode) as pair:
        fence = pair.begin(1, len(BLOCKS))
        pair.fill(1, 0, BLOCKS[:4], behind="the first chunk")
        pair.fill(1, 4, BLOCKS[4:], behind="the second one")
        pair.commit(1)
        result = await pair.receiver.receive(pair.task(fence, TARGETS, behind="the allotment"))
        assert (result.num_verified_blocks, result.num_corrupt_blocks) == (6, 0)
        assert result.transport == mode.value
        assert 0 < result.exposed_s <= result.total_s
        assert pair.differing(BLOCKS, TARGETS) == []
        others = [block for block in range(NUM_BLOCKS) if block not in TARGETS]
        assert not pair.target.tensor[others].any(), "a bystander was written to"
        assert [behind for _, _, behind in pair.stores.begun] == ["the first chunk", "the second one"]
        assert {behind for _, _, behind in pair.loads.begun} == {"the allotment"}
        await until(lambda: bool(pair.over))
        await pair.until_nothing_is_held()


@BOTH
async def test_a_block_is_offered_when_its_copy_is_done_and_not_before(
    mode: TransportMode, tmp_path: Path
) -> None:
    async with staged_pair(tmp_path, mode) as pair:
        fence = pair.begin(1, 6)
        pair.fill(1, 0, BLOCKS[:3])
        receiving = asyncio.create_task(pair.receiver.receive(pair.task(fence, TARGETS)))
        await until(lambda: pair.differing(BLOCKS, TARGETS) == [3, 4, 5])
        pair.stores.gate.clear()
        pair.fill(1, 3, BLOCKS[3:])
        pair.commit(1)
        await until(lambda: len(pair.stores.begun) == 2)
        await settle()
        assert not receiving.done()
        assert pair.differing(BLOCKS, TARGETS) == [3, 4, 5]
        pair.stores.gate.set()
        assert (await receiving).num_verified_blocks == 6
        assert pair.differing(BLOCKS, TARGETS) == []


async def test_a_sequence_joins_when_its_blocks_are_on_the_device(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.SHM) as pair:
        pair.loads.gate.clear()
        fence = pair.offer_all(1, BLOCKS)
        receiving = asyncio.create_task(pair.receiver.receive(pair.task(fence, TARGETS)))
        await until(lambda: bool(pair.loads.begun))
        await settle()
        assert not receiving.done()
        assert not pair.over, "the sender was let go before"
        pair.loads.gate.set()
        await receiving
        assert pair.differing(BLOCKS, TARGETS) == []


async def test_a_cancelled_receive_ends_once_nothing_writes_its_blocks(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.SHM) as pair:
        pair.loads.gate.clear()
        fence = pair.offer_all(1, BLOCKS)
        receiving = asyncio.create_task(pair.receiver.receive(pair.task(fence, TARGETS)))
        await until(lambda: bool(pair.loads.begun))
        receiving.cancel()
        await settle()
        assert not receiving.done(), "its blocks would be given to the next sequence"
        pair.loads.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await until(lambda: bool(pair.over))
        assert pair.over[0][1].end is End.GIVEN_UP
        await pair.until_nothing_is_held()


async def test_slots_of_a_broken_fence_are_free_when_no_copy_writes_to_them(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.SHM, num_slots=6) as pair:
        pair.stores.gate.clear()
        pair.offer_all(1, (10, 11, 12, 13, 14, 15))
        fence = pair.offer_all(2, BLOCKS)
        await until(lambda: bool(pair.stores.begun))
        pair.handoffs.abort(1, "called off")
        await settle()
        assert [handle for handle, _ in pair.over] == [1]
        assert not pair.sending._staged[2].slots, "they were given away while a copy wrote to them"
        pair.stores.gate.set()
        await pair.receiver.receive(pair.task(fence, TARGETS))
        assert pair.differing(BLOCKS, TARGETS) == []
        await until(lambda: len(pair.over) == 2)
        await pair.until_nothing_is_held()


@BOTH
async def test_handoffs_that_do_not_fit_together_take_turns(mode: TransportMode, tmp_path: Path) -> None:
    """Each is half filled when the others come: taking slots block by block, none would ever be complete."""
    async with staged_pair(tmp_path, mode, num_slots=6) as pair:
        fences = [pair.begin(handle, 4) for handle in (1, 2, 3)]
        for first_index in (0, 2):
            for handle in (1, 2, 3):
                begin = handle * 4 + first_index
                pair.fill(handle, first_index, [begin, begin + 1])
        for handle in (1, 2, 3):
            pair.commit(handle)
        tasks = [
            pair.task(fence, range(handle * 4, handle * 4 + 4)) for handle, fence in enumerate(fences, 1)
        ]
        await asyncio.gather(*(pair.receiver.receive(task) for task in tasks))
        assert pair.differing(range(4, 16), range(4, 16)) == []
        await until(lambda: len(pair.over) == 3)
        assert [handle for handle, _ in pair.over] == [1, 2, 3]
        await pair.until_nothing_is_held()


async def test_who_gives_up_its_place_in_the_queue_leaves_it_to_the_next(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.SHM, num_slots=4) as pair:
        pair.offer_all(1, [1, 2, 3])
        pair.offer_all(2, [4, 5])
        fence = pair.offer_all(3, [6])
        await settle()
        pair.handoffs.abort(2, "called off")
        await pair.receiver.receive(pair.task(fence, [9]))
        assert pair.differing([6], [9]) == []
        pair.handoffs.abort(1, "called off")
        await until(lambda: len(pair.over) == 3)
        await pair.until_nothing_is_held()


@BOTH
async def test_a_block_damaged_in_its_slot_never_reaches_the_device(
    mode: TransportMode, tmp_path: Path
) -> None:
    async with staged_pair(tmp_path, mode) as pair:
        fence = pair.begin(1, 4)
        pair.fill(1, 0, BLOCKS[:4])
        await until(lambda: None not in pair.handoffs.find(fence).handoff._checksums)
        pair.stores.slots.block_bytes_view(2)[5] ^= 1
        pair.commit(1)
        result = await pair.receiver.receive(pair.task(fence, TARGETS[:4]))
        assert (result.num_verified_blocks, result.num_corrupt_blocks) == (2, 1)
        assert not pair.target.tensor[TARGETS[2]].any()
        assert pair.differing(BLOCKS[:2], TARGETS[:2]) == []
        await until(lambda: bool(pair.over))
        await pair.until_nothing_is_held()


async def test_a_copy_that_fails_ends_its_handoff_alone(tmp_path: Path) -> None:
    async with staged_pair(tmp_path, TransportMode.SHM) as pair:
        pair.stores.error = RuntimeError("the bus fell off")
        fence = pair.offer_all(1, BLOCKS)
        with pytest.raises(SenderAbortedError, match="cannot be offered: the bus fell off"):
            await pair.receiver.receive(pair.task(fence, TARGETS))
        pair.stores.error, pair.loads.error = None, RuntimeError("and so did ours")
        fence = pair.offer_all(2, BLOCKS)
        with pytest.raises(RuntimeError, match="and so did ours"):
            await pair.receiver.receive(pair.task(fence, TARGETS))
        await until(lambda: len(pair.over) == 2)
        pair.loads.error = None
        fence = pair.offer_all(3, BLOCKS)
        await pair.receiver.receive(pair.task(fence, TARGETS))
        assert pair.differing(BLOCKS, TARGETS) == []
        await until(lambda: len(pair.over) == 3)
        await pair.until_nothing_is_held()
