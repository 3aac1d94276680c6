"""Both halves, an unreliable world between them, and what must hold whatever happens in which order."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvtransfer.errors import KVTransferError
from kvtransfer.handoff import BlockState, End, SenderHandoff
from kvtransfer.manifest import Commit, Offer
from kvtransfer.receiver_handoff import BlockCopy, ReceiverHandoff
from scheduling.columns import TokenColumns
from scheduling.request import Fence

FENCE = Fence("t", "r", 0, 0, 0, "source", "target")
FREE = (BlockState.RELEASED, BlockState.ABORTED)


class HandoffMachine(RuleBasedStateMachine):
    """Contents are numbers: a sender's block i holds 100 + i while it may be read, junk once it is free."""

    @initialize(num_blocks=st.integers(1, 5), data=st.data())
    def start(self, num_blocks: int, data: st.DataObject) -> None:
        self.num_held = data.draw(st.integers(0, num_blocks))
        self.now = 0.0
        self.sender = SenderHandoff(FENCE, num_blocks, self.now)
        hashes = [bytes([index]) * 16 for index in range(num_blocks)]
        self.receiver = ReceiverHandoff(FENCE, list(range(num_blocks)), hashes, self.num_held)
        self.private: dict[int, int] = dict.fromkeys(range(self.num_held), 0)
        self.unsummed: list[int] = []
        self.num_filled = 0
        self.to_receiver: list[Offer | Commit] = []
        self.copying: list[BlockCopy] = []
        self.acknowledgements = 0
        self.receiver_owns = False
        self.receiver_failed = False

    @precondition(lambda self: self.num_filled < self.sender.num_blocks)
    @rule(num=st.integers(1, 3))
    def fill(self, num: int) -> None:
        indexes = list(range(self.num_filled, min(self.num_filled + num, self.sender.num_blocks)))
        self.sender.fill(indexes[0], indexes, [bytes([index]) * 16 for index in indexes])
        self.unsummed += indexes
        self.num_filled += len(indexes)
        if self.num_filled == self.sender.num_blocks:
            self.sender.commit(Commit(1, TokenColumns()))

    @precondition(lambda self: self.unsummed)
    @rule(data=st.data())
    def sum_up(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(self.unsummed))
        self.unsummed.remove(index)
        self.sender.put_checksums(index, [100 + index])

    @rule()
    def open(self) -> None:
        try:
            self.sender.open(FENCE, self.num_held)
        except KVTransferError:
            assert self.sender.is_open or self.sender.outcome is not None

    @rule()
    def say(self) -> None:
        offer = self.sender.take_offer()
        if offer is not None:
            self.to_receiver.append(offer)
        commit = self.sender.take_commit(self.now)
        if commit is not None:
            self.to_receiver.append(commit)

    @precondition(lambda self: self.to_receiver and not self.receiver_failed)
    @rule()
    def hear(self) -> None:
        match self.to_receiver.pop(0):
            case Offer() as offer:
                self.copying += self.receiver.take(offer)
            case Commit() as commit:
                self.receiver.commit(commit)

    @precondition(lambda self: self.copying)
    @rule(data=st.data(), torn=st.booleans())
    def finish_copy(self, data: st.DataObject, torn: bool) -> None:
        copy = data.draw(st.sampled_from(self.copying))
        self.copying.remove(copy)
        free = self.sender.state(copy.index) in FREE
        self.private[copy.index] = -1 if free or torn else 100 + copy.index
        if not self.receiver_failed:
            self.receiver.put_checksum(copy, self.private[copy.index])

    @precondition(lambda self: self.receiver.is_settled and not self.copying and not self.receiver_failed)
    @rule(lost=st.booleans())
    def acknowledge(self, lost: bool) -> None:
        """The acknowledgement may be repeated, and its answer lost: then the receiver asks again later."""
        try:
            accepted = self.sender.acknowledge(FENCE, len(self.receiver.mismatches))
        except KVTransferError:
            assert not self.receiver_owns, "an owner was dispossessed"
            self.receiver_failed = True
            return
        self.acknowledgements += accepted
        self.receiver_owns = self.receiver_owns or not lost

    @precondition(lambda self: not self.receiver_owns and self.acknowledgements == 0)
    @rule()
    def receiver_gives_up(self) -> None:
        """Not while copies run: it awaits them first."""
        if not self.copying:
            self.receiver_failed = True
            self.sender.abort("given up")

    @rule()
    def cancel(self) -> None:
        self.sender.abort("cancelled")

    @rule(passed=st.floats(0, 40))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.sender.expire(self.now)

    @invariant()
    def no_block_is_freed_under_a_reader_unless_the_fence_is_broken(self) -> None:
        for copy in getattr(self, "copying", []):
            if self.sender.state(copy.index) in FREE:
                outcome = self.sender.outcome
                assert outcome is not None
                assert outcome.end is not End.ACKNOWLEDGED

    @invariant()
    def there_are_never_two_owners(self) -> None:
        if getattr(self, "receiver_owns", False):
            assert self.sender.outcome is not None
            assert self.sender.outcome.end is End.ACKNOWLEDGED
            assert {self.sender.state(index) for index in range(self.sender.num_blocks)} == {
                BlockState.RELEASED
            }

    @invariant()
    def an_acknowledgement_counts_once(self) -> None:
        assert getattr(self, "acknowledgements", 0) <= 1

    @invariant()
    def what_may_be_used_holds_what_was_sent(self) -> None:
        if hasattr(self, "receiver"):
            for index in range(self.num_held, self.receiver.num_verified_blocks):
                assert self.private[index] == 100 + index

    @invariant()
    def all_blocks_are_free_once_it_is_over_and_none_before(self) -> None:
        if hasattr(self, "sender"):
            free = {self.sender.state(index) in FREE for index in range(self.sender.num_blocks)}
            assert free == {self.sender.outcome is not None}


TestHandoff = HandoffMachine.TestCase
