"""KV that groups wait for: copies from other workers, and blocks of prefixes that are read.

Blocks are read from other tiers, or from a worker that lends them. Sequences that begin alike wait for one
read: the first of them reads, and the others look again when its read is over. None of them would have the
blocks sooner by a read of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.commands import BlocksRead, KVArrived, KVFailed
from engine.core.groups.groups import Groups
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.stores import KVLinks, KVTiers
from engine.core.report import Reading
from engine.core.sequence import Goal, Phase, SequenceGroup
from scheduling.cost_model import CostModel
from scheduling.memory.prefix_reads import PrefixRead, choose_read
from scheduling.request import FailureReason, PrefixSource


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


@dataclass(frozen=True, slots=True)
class Wanted:
    """Blocks behind a group's cached prefix that are worth waiting for, for `limit_s` at most."""

    hashes: tuple[bytes, ...]
    limit_s: float
    source: PrefixSource | None
    """None: the worker's own tiers."""


@dataclass(slots=True)
class _Read:
    """A read under way, and the groups that wait for it."""

    wanted: Wanted
    followers: list[SequenceGroup]


class PrefixReads:
    """The reads under way, and the groups that wait for those of others."""

    def __init__(self, tiers: KVTiers | None, links: KVLinks | None, tables: BlockTables) -> None:
        self._tiers = tiers
        self._links = links
        self._tables = tables
        self._reader_of: dict[bytes, int] = {}
        """The handle that reads, by the hash of the first block of its read."""
        self._reads: dict[int, _Read] = {}
        """By the handle that reads."""

    def wanted(self, group: SequenceGroup, cost: CostModel, *, fetches: bool = True) -> Wanted | None:
        """Return the blocks behind a group's cached prefix that are worth reading, if there are any.

        Only a group that `fetches` looks at other workers.
        """
        source = group.spec.prefix_source if fetches and self._links is not None else None
        if self._tiers is None and source is None:
            return None
        hashes = self._tables.computable_prefix(group)[len(group.block_table) :]
        ways = self._ways(group, source, hashes)
        reads = [PrefixRead(num_blocks * self._tables.block_size, read_s) for num_blocks, read_s, _ in ways]
        chosen = choose_read(reads, group.num_computed_tokens, cost)
        if chosen is None:
            return None
        num_blocks, _, where = ways[chosen.place]
        return Wanted(tuple(hashes[:num_blocks]), chosen.limit_s, where)

    def follow(self, group: SequenceGroup, wanted: Wanted) -> bool:
        """Let a group wait for the read of another one, if that reads the same; return True if it does."""
        reader = self._reader_of.get(wanted.hashes[0])
        if reader is None:
            return False
        self._reads[reader].followers.append(group)
        return True

    def begin(self, group: SequenceGroup, wanted: Wanted) -> Reading:
        """Allocate blocks to read into."""
        num_held = len(group.block_table)
        num_tokens = len(wanted.hashes) * self._tables.block_size
        self._tables.cover(group, group.num_computed_tokens + num_tokens)
        self._reader_of[wanted.hashes[0]] = group.handle
        self._reads[group.handle] = _Read(wanted, [])
        blocks = tuple(group.block_table[num_held:])
        return Reading(group.handle, blocks, wanted.hashes, wanted.limit_s, wanted.source)

    def end(self, handle: int) -> list[SequenceGroup]:
        """Take in that a read is over; return the groups that have waited for it, those ended included."""
        read = self._reads.pop(handle)
        del self._reader_of[read.wanted.hashes[0]]
        return read.followers

    def _ways(
        self, group: SequenceGroup, source: PrefixSource | None, hashes: Sequence[bytes]
    ) -> list[tuple[int, float, PrefixSource | None]]:
        """Return how many blocks can be read, how long that takes, and from where, for each way to read."""
        ways: list[tuple[int, float, PrefixSource | None]] = []
        if self._tiers is not None:
            ways += [(hit.num_blocks, hit.read_s, None) for hit in self._tiers.readable(hashes)]
        if self._links is not None and source is not None:
            num_blocks = min(len(hashes), source.num_blocks - len(group.block_table))
            if num_blocks > 0:
                ways.append((num_blocks, self._links.fetch_s(source.incarnation, num_blocks), source))
        return ways
