"""The receiver's half of the lifecycle, without any I/O."""

import dataclasses

import pytest

from kvtransfer.errors import LayoutMismatchError, ProtocolError
from kvtransfer.manifest import ChecksumKind, Commit, Manifest, Offer
from kvtransfer.receiver_handoff import BlockCopy, Mismatch, ReceivedState, ReceiverHandoff
from scheduling.columns import TokenColumns
from scheduling.request import Fence

FENCE = Fence("t", "r", 0, 0, 0, "source", "target")
COMMIT = Commit(num_tokens=40, first_tokens=TokenColumns(token_ids=[7]))


def block_hash(index: int) -> bytes:
    return bytes([index]) * 16


def handoff(num_blocks: int = 4, num_held: int = 0) -> ReceiverHandoff:
    hashes = [block_hash(index) for index in range(num_blocks)]
    return ReceiverHandoff(FENCE, [20 + index for index in range(num_blocks)], hashes, num_held)


def offer(*indexes: int) -> Offer:
    return Offer(
        indexes, [10 + i for i in indexes], [block_hash(i) for i in indexes], [1000 + i for i in indexes]
    )


def test_offers_come_in_any_order_and_settle_with_the_commit() -> None:
    receiver = handoff()
    late, early = receiver.take(offer(2, 3)), receiver.take(offer(1, 0))
    assert late[0] == BlockCopy(index=2, sender_block=12, target_block=22, checksum=1002)
    for copy in (*early, *late):
        assert receiver.put_checksum(copy, 1000 + copy.index)
    assert receiver.num_verified_blocks == 4
    receiver.commit(COMMIT)
    assert receiver.is_settled


def test_nothing_settles_while_a_block_is_under_way() -> None:
    receiver = handoff(num_blocks=1)
    (copy,) = receiver.take(offer(0))
    receiver.commit(COMMIT)
    settled = [receiver.is_settled]
    receiver.put_checksum(copy, 1000)
    settled.append(receiver.is_settled)
    assert settled == [False, True]


def test_held_blocks_count_as_verified() -> None:
    receiver = handoff(num_blocks=3, num_held=2)
    assert receiver.num_verified_blocks == 2
    (copy,) = receiver.take(offer(2))
    receiver.put_checksum(copy, 1002)
    assert receiver.num_verified_blocks == 3


def test_a_damaged_block_and_what_follows_it_are_never_used() -> None:
    receiver = handoff()
    copies = receiver.take(offer(0, 1, 2))
    assert receiver.put_checksum(copies[0], 1000)
    assert not receiver.put_checksum(copies[1], 666)
    assert not receiver.wants(copies[2])
    assert receiver.take(offer(3)) == []
    receiver.commit(COMMIT)
    assert receiver.is_settled
    assert receiver.num_verified_blocks == 1
    assert receiver.mismatches == [Mismatch(1, "checksum", f"{1001:016x}", f"{666:016x}")]


def test_blocks_before_a_damaged_one_are_still_waited_for() -> None:
    receiver = handoff(num_blocks=2)
    first, second = receiver.take(offer(0, 1))
    receiver.put_checksum(second, 666)
    receiver.commit(COMMIT)
    assert receiver.wants(first)
    assert not receiver.is_settled


def test_a_block_of_another_prompt_is_never_used() -> None:
    receiver = handoff(num_blocks=2)
    wrong = Offer([1], [11], [b"x" * 16], [1])
    assert receiver.take(wrong) == []
    assert receiver.state(1) is ReceivedState.CORRUPT
    assert receiver.mismatches[0].what == "hash"
    assert [copy.index for copy in receiver.take(offer(0))] == [0]


@pytest.mark.parametrize("index", [0, 1, 4])
def test_an_offer_of_a_held_known_or_impossible_block_is_refused(index: int) -> None:
    receiver = handoff(num_held=1)
    receiver.take(offer(1))
    with pytest.raises(ProtocolError, match=f"block {index} offered"):
        receiver.take(offer(index))


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ProtocolError, match="differ in length"):
        handoff().take(Offer([0, 1], [10], [block_hash(0)], [1]))


def test_a_commit_before_the_last_offer_is_refused() -> None:
    receiver = handoff(num_blocks=2)
    receiver.take(offer(0))
    with pytest.raises(ProtocolError, match="block 1 committed but not offered"):
        receiver.commit(COMMIT)


def test_a_second_commit_is_refused() -> None:
    receiver = handoff(num_blocks=1, num_held=1)
    receiver.commit(COMMIT)
    with pytest.raises(ProtocolError, match="committed twice"):
        receiver.commit(COMMIT)


@pytest.mark.parametrize("field", ["num_blocks", "block_size", "block_bytes"])
def test_a_manifest_of_other_blocks_is_refused(field: str) -> None:
    manifest = Manifest(num_blocks=4, block_size=16, block_bytes=512, checksum_kind=ChecksumKind.XXH3_64)
    receiver = handoff()
    receiver.check_manifest(manifest, 16, 512)
    other = dataclasses.replace(manifest, **{field: 1})  # type: ignore[arg-type]  # the field has a variable name
    with pytest.raises(LayoutMismatchError, match=field):
        receiver.check_manifest(other, 16, 512)
