"""The sender's half of the lifecycle, without any I/O."""

import dataclasses
import itertools

import pytest

from kvtransfer.errors import FenceBrokenError, LayoutMismatchError, ProtocolError, WrongIncarnationError
from kvtransfer.handoff import MAX_OFFERED, TRANSITIONS, BlockState, End, Outcome, SenderHandoff, SenderLimits
from kvtransfer.manifest import Commit
from scheduling.columns import TokenColumns
from scheduling.request import Fence

FENCE = Fence("t", "r", 0, 0, 0, "source", "target")
LIMITS = SenderLimits(open_within_s=30.0, acknowledge_within_s=20.0)
COMMIT = Commit(num_tokens=40, first_tokens=TokenColumns(token_ids=[7]))


def handoff(num_blocks: int = 3) -> SenderHandoff:
    return SenderHandoff(FENCE, num_blocks, now_s=100.0, limits=LIMITS)


def fill(sender: SenderHandoff, first_index: int, num: int, *, checksums: bool = True) -> None:
    indexes = range(first_index, first_index + num)
    sender.fill(first_index, [10 + i for i in indexes], [i.to_bytes(16) for i in indexes])
    if checksums:
        sender.put_checksums(first_index, [1000 + i for i in indexes])


def committed(num_blocks: int = 3) -> SenderHandoff:
    sender = handoff(num_blocks)
    sender.open(FENCE, num_held=0)
    fill(sender, 0, num_blocks)
    sender.commit(COMMIT)
    assert sender.take_offer() is not None
    assert sender.take_commit(now_s=110.0) is COMMIT
    return sender


def test_a_block_is_offered_once_when_filled_summed_and_opened() -> None:
    sender = handoff()
    fill(sender, 0, 2, checksums=False)
    assert sender.take_offer() is None
    sender.open(FENCE, num_held=0)
    assert sender.take_offer() is None
    sender.put_checksums(0, [1000, 1001])
    offer = sender.take_offer()
    assert offer is not None
    assert (offer.indexes, offer.sender_blocks, offer.checksums) == ([0, 1], [10, 11], [1000, 1001])
    assert offer.block_hashes == [(0).to_bytes(16), (1).to_bytes(16)]
    assert sender.take_offer() is None


def test_a_long_sequence_is_offered_in_pieces() -> None:
    sender = handoff(MAX_OFFERED + 5)
    sender.open(FENCE, num_held=2)
    fill(sender, 0, MAX_OFFERED + 5)
    offers = [sender.take_offer() for _ in range(3)]
    assert [None if offer is None else len(offer.indexes) for offer in offers] == [MAX_OFFERED, 3, None]


def test_checksums_may_come_in_another_order_than_fills() -> None:
    sender = handoff()
    sender.open(FENCE, num_held=0)
    fill(sender, 0, 2, checksums=False)
    fill(sender, 2, 1)
    offer = sender.take_offer()
    assert offer is not None
    assert offer.indexes == [2]
    sender.put_checksums(0, [1, 2])
    offer = sender.take_offer()
    assert offer is not None
    assert offer.indexes == [0, 1]


def test_the_commit_waits_for_the_last_offer_and_comes_once() -> None:
    sender = handoff()
    sender.commit(COMMIT)
    sender.open(FENCE, num_held=0)
    fill(sender, 0, 3)
    assert sender.take_commit(now_s=101.0) is None
    sender.take_offer()
    assert sender.take_commit(now_s=101.0) is COMMIT
    assert sender.take_commit(now_s=101.0) is None


def test_held_blocks_are_neither_offered_nor_readable() -> None:
    sender = handoff()
    fill(sender, 0, 3)
    sender.commit(COMMIT)
    sender.open(FENCE, num_held=2)
    offer = sender.take_offer()
    assert offer is not None
    assert offer.indexes == [2]
    assert sender.take_commit(now_s=101.0) is COMMIT
    assert sender.locate(FENCE, [2]) == [12]
    with pytest.raises(ProtocolError):
        sender.locate(FENCE, [1])


def test_a_receiver_that_holds_everything_gets_the_commit_alone() -> None:
    sender = handoff()
    fill(sender, 0, 3)
    sender.commit(COMMIT)
    sender.open(FENCE, num_held=3)
    assert sender.take_offer() is None
    assert sender.take_commit(now_s=101.0) is COMMIT


def test_a_receiver_cannot_hold_more_than_there_is() -> None:
    with pytest.raises(LayoutMismatchError, match="num_held_blocks is 4"):
        handoff().open(FENCE, num_held=4)


def test_only_offered_blocks_can_be_read() -> None:
    sender = handoff()
    sender.open(FENCE, num_held=0)
    fill(sender, 0, 2)
    with pytest.raises(ProtocolError, match="block 0"):
        sender.locate(FENCE, [0])
    sender.take_offer()
    assert sender.locate(FENCE, [1, 0]) == [11, 10]
    for index in (2, 3):
        with pytest.raises(ProtocolError, match=f"block {index}"):
            sender.locate(FENCE, [index])


def test_the_acknowledgement_releases() -> None:
    sender = committed()
    assert sender.acknowledge(FENCE, num_corrupt_blocks=1)
    assert sender.outcome == Outcome(End.ACKNOWLEDGED, num_corrupt_blocks=1)
    assert {sender.state(index) for index in range(3)} == {BlockState.RELEASED}


def test_a_duplicate_acknowledgement_changes_nothing() -> None:
    sender = committed()
    sender.acknowledge(FENCE, num_corrupt_blocks=1)
    assert not sender.acknowledge(FENCE, num_corrupt_blocks=0)
    assert sender.outcome == Outcome(End.ACKNOWLEDGED, num_corrupt_blocks=1)


def test_an_acknowledgement_before_the_commit_is_refused() -> None:
    sender = handoff()
    sender.open(FENCE, num_held=0)
    fill(sender, 0, 3)
    sender.take_offer()
    with pytest.raises(ProtocolError, match="before it was committed"):
        sender.acknowledge(FENCE, num_corrupt_blocks=0)
    assert sender.state(0) is BlockState.OFFERED


def test_a_late_acknowledgement_is_refused() -> None:
    sender = committed()
    assert sender.expire(now_s=130.0)
    with pytest.raises(FenceBrokenError, match="not acknowledged in time"):
        sender.acknowledge(FENCE, num_corrupt_blocks=0)
    assert sender.outcome is not None
    assert sender.outcome.end is End.EXPIRED


def test_cancellation_aborts_every_block_and_every_reader() -> None:
    sender = handoff()
    sender.open(FENCE, num_held=0)
    fill(sender, 0, 2)
    sender.take_offer()
    assert sender.abort("cancelled")
    assert {sender.state(index) for index in range(3)} == {BlockState.ABORTED}
    with pytest.raises(FenceBrokenError, match="cancelled"):
        sender.locate(FENCE, [0])
    assert not sender.abort("again")
    assert sender.outcome == Outcome(End.ABORTED, "cancelled")


def test_what_the_engine_still_says_after_the_end_is_ignored() -> None:
    sender = handoff()
    fill(sender, 0, 1, checksums=False)
    sender.abort("cancelled")
    sender.put_checksums(0, [1])
    fill(sender, 1, 2)
    sender.commit(COMMIT)
    assert sender.take_offer() is None
    assert sender.take_commit(now_s=101.0) is None


def test_nobody_waits_for_ever_for_a_receiver_that_never_opens() -> None:
    sender = handoff()
    assert sender.deadline_s == 130.0
    assert not sender.expire(now_s=129.9)
    assert sender.expire(now_s=130.0)
    assert sender.outcome == Outcome(End.EXPIRED, "never opened")
    assert not sender.expire(now_s=131.0)


def test_an_open_handoff_has_no_deadline_until_it_is_committed() -> None:
    sender = handoff()
    sender.open(FENCE, num_held=0)
    assert sender.deadline_s is None
    assert not sender.expire(now_s=1e9)
    assert committed().deadline_s == 130.0


def test_a_handoff_is_opened_once() -> None:
    sender = handoff()
    sender.open(FENCE, num_held=0)
    with pytest.raises(ProtocolError, match="opened twice"):
        sender.open(FENCE, num_held=0)


@pytest.mark.parametrize("field", ["source_incarnation", "target_incarnation"])
def test_another_incarnation_is_refused(field: str) -> None:
    stranger = dataclasses.replace(FENCE, **{field: "another"})  # type: ignore[arg-type]  # variable field
    sender = committed()
    with pytest.raises(WrongIncarnationError, match=field):
        handoff().open(stranger, num_held=0)
    with pytest.raises(WrongIncarnationError, match=field):
        sender.locate(stranger, [0])
    with pytest.raises(WrongIncarnationError, match=field):
        sender.acknowledge(stranger, num_corrupt_blocks=0)


def test_the_table_of_transitions_is_what_the_drawing_says() -> None:
    line = [
        BlockState.ALLOCATED,
        BlockState.FILLED,
        BlockState.OFFERED,
        BlockState.COMMITTED,
        BlockState.RELEASED,
    ]
    for state, following in itertools.pairwise(line):
        assert following in TRANSITIONS[state]
    breakable = {state for state, targets in TRANSITIONS.items() if BlockState.ABORTED in targets}
    assert breakable == {BlockState.ALLOCATED, BlockState.FILLED, BlockState.OFFERED}
    assert sum(len(targets) for targets in TRANSITIONS.values()) == 7
