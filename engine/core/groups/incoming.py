"""KV that groups wait for: copies from other workers, and blocks of prefixes that are read."""

from __future__ import annotations

from engine.core.commands import BlocksRead, KVArrived, KVFailed
from engine.core.groups.groups import Groups
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.prefix_reads import PrefixReads
from engine.core.sequence import Goal, Phase, SequenceGroup
from scheduling.cost.cost_model import CostModel
from scheduling.request import FailureReason


class Incoming:
    """Begins and ends the copies into blocks of this worker."""

    def __init__(self, groups: Groups, tables: BlockTables, prefix_reads: PrefixReads) -> None:
        self._groups = groups
        self._roster = groups.roster
        self._tables = tables
        self._prefix_reads = prefix_reads

    def begin_receive(self, group: SequenceGroup) -> None:
        """Let a group that has memory wait for the KV of another worker."""
        self._roster.put(group, Phase.RECEIVING)
        self._groups.report.received.append(self._tables.expect(group))

    def begin_prefill(self, group: SequenceGroup, cost: CostModel) -> None:
        """Let a group that has memory wait for blocks from elsewhere, if that pays, and else compute."""
        if not self._waits_for_read(group, cost):
            self._roster.put(group, Phase.PREFILLING)
            self._groups.publish_blocks(group)

    def end_copy(self, command: KVArrived | KVFailed | BlocksRead, now_s: float, cost: CostModel) -> None:
        """Take in that a copy is over, or has failed."""
        match command:
            case KVArrived():
                self._arrive(command, now_s)
            case KVFailed(handle, message):
                self._give_up_copy(handle, message)
            case BlocksRead():
                self._take_read(command, cost)

    def _arrive(self, arrived: KVArrived, now_s: float) -> None:
        group = self._receiver(arrived.handle, Phase.RECEIVING)
        if group is None:
            return
        self._tables.accept(group, arrived.num_verified_blocks)
        if group.goal is Goal.CACHE:
            self._groups.report_prefilled(group)
            self._groups.end(group)
            return
        group.receives = False
        if not group.lacks_newest:
            group.first_tokens = arrived.first_tokens
            group.first_token_s = now_s - arrived.first_token_age_s
        self._roster.put(group, Phase.ARRIVED)

    def _give_up_copy(self, handle: int, message: str) -> None:
        group = self._receiver(handle, Phase.RECEIVING)
        if group is not None:
            self._groups.fail(group, FailureReason.HANDOFF, message)

    def _waits_for_read(self, group: SequenceGroup, cost: CostModel, *, fetches: bool = True) -> bool:
        """Return True if the group waits for blocks in other tiers or at another worker from now on."""
        # Reads are named by handles, so the pieces of a handle do not read.
        if len(self._roster.pieces(group.handle)) > 1:
            return False
        wanted = self._prefix_reads.wanted(group, cost, fetches=fetches)
        if wanted is None:
            return False
        if self._prefix_reads.follow(group, wanted):
            self._roster.put(group, Phase.FOLLOWING)
        else:
            self._roster.put(group, Phase.READING)
            self._groups.report.reads.append(self._prefix_reads.begin(group, wanted))
        return True

    def _take_read(self, read: BlocksRead, cost: CostModel) -> None:
        if self._roster.undivided(read.handle) is None:
            return
        followers = self._prefix_reads.end(read.handle)
        group = self._receiver(read.handle, Phase.READING)
        if group is not None:
            self._tables.accept_read(group, read.num_blocks)
            self._leave_read(group)
        for follower in followers:
            if follower.phase is Phase.FOLLOWING:
                self._tables.extend_from_cache(follower)
                if not self._waits_for_read(follower, cost, fetches=not read.failed):
                    self._leave_read(follower)

    def _leave_read(self, group: SequenceGroup) -> None:
        """Let a group go on that waits for a read no more."""
        self._groups.publish_blocks(group)
        self._roster.put(group, Phase.ARRIVED)

    def _receiver(self, handle: int, phase: Phase) -> SequenceGroup | None:
        """Return the group whose copy is over; end it and return None if nobody waits for it any more."""
        group = self._roster.undivided(handle)
        if group is None:
            return None
        if group.phase is Phase.ABANDONED:
            self._groups.end(group)
            return None
        assert group.phase is phase, f"a copy is over for a sequence that is {group.phase.value}"
        return group
