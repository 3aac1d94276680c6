"""How sequences come in: the groups made of them wait for a grammar, an adapter, blocks and rows, and for KV.

The KV is copied from other workers, or read: blocks of prefixes, from other tiers or from a worker that lends
them. Sequences that begin alike wait for one read: the first of them reads, and the others look again when
its read is over. None of them would have the blocks sooner by a read of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.admission import EngineLimits, Refuse
from engine.core.commands import (
    AdapterLoaded,
    BlocksRead,
    Decode,
    GrammarReady,
    KVArrived,
    KVFailed,
    Prefill,
    Receive,
)
from engine.core.groups.groups import Groups
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.stores import KVLinks, KVTiers
from engine.core.report import Failure, Reading
from engine.core.sequence import Goal, Phase, SequenceGroup
from model_output.text.output import output_rules
from scheduling.cost_model import CostModel
from scheduling.memory.prefix_reads import PrefixRead, choose_read
from scheduling.request import FailureReason, PrefixSource, ReceiveKind


class Entrance:
    """Makes groups of what commands bring, and lets them in while memory and the batch have room.

    The pool has `num_blocks`. `refuse` returns why the executor cannot run a sequence at all, or None.
    """

    def __init__(
        self,
        groups: Groups,
        incoming: Incoming,
        tables: BlockTables,
        num_blocks: int,
        limits: EngineLimits,
        refuse: Refuse,
    ) -> None:
        self._groups = groups
        self._roster = groups.roster
        self._incoming = incoming
        self._tables = tables
        self._num_blocks = num_blocks
        self._limits = limits
        self._refuse = refuse

    # Before there are blocks

    def enter(self, command: Prefill | Decode | Receive, now_s: float) -> None:
        """Let a sequence wait for its turn, or report why it can never have one."""
        spec = command.spec
        assert spec.handle not in self._roster, f"handle {spec.handle} is in use"
        entered = self._made(command, now_s)
        if isinstance(entered, Failure):
            self._groups.refuse(entered)
            return
        self._roster.add(entered)
        if spec.sampling.grammar and entered.goal is not Goal.CACHE:
            self._roster.wait_for_grammar(entered)
        else:
            self._groups.wait_for_adapter(entered)

    def end_wait(self, ready: GrammarReady | AdapterLoaded) -> None:
        """Let the groups go on whose grammar or adapter is there, or end them if it never will be."""
        if isinstance(ready, GrammarReady):
            self._take_grammar(ready)
        elif ready.refusal:
            self._groups.fail_adapter_load(ready.digest, f"adapter {ready.refusal}")
        else:
            self._groups.end_adapter_load(ready.digest)

    def _take_grammar(self, ready: GrammarReady) -> None:
        group = self._roster.undivided(ready.handle)
        if group is None or group.key not in self._roster.lacking_grammar:
            return
        group.grammar = ready.grammar
        if ready.grammar is None:
            message = f"grammar cannot be followed: {ready.refusal}"
            self._groups.fail(group, FailureReason.REFUSED, message)
        else:
            self._groups.wait_for_adapter(group)

    def _made(self, command: Prefill | Decode | Receive, now_s: float) -> SequenceGroup | Failure:
        spec = command.spec
        sentence = self._refuse(spec)
        if sentence is not None:
            return Failure(spec.handle, FailureReason.REFUSED, sentence)
        limits, num_prompt = self._limits, len(spec.prompt_token_ids)
        rules = output_rules(spec.stop, limits.eos_token_ids, num_prompt, limits.max_context)
        hashes = self._tables.names.of_full_blocks(spec, spec.output_token_ids)
        group = SequenceGroup(next(self._roster.keys), spec, _goal(command), rules, hashes, now_s)
        if isinstance(command, Receive):
            group.receives = True
            group.lacks_newest = command.kind is ReceiveKind.STOPPED
            group.num_prompt_rows = 0  # reported where the prompt was computed
        num_most = self._tables.most_blocks(group, group.num_rows)
        if num_most > self._num_blocks:
            sentence = f"up to {num_most} blocks are needed, and the pool has {self._num_blocks}"
            return Failure(spec.handle, FailureReason.NO_BLOCKS, sentence)
        return group

    # Blocks and rows

    def start_waiting(self, cost: CostModel) -> list[SequenceGroup]:
        """Let groups in, first come first served, while memory and the batch have room.

        Preempted groups come before new ones. Return the groups whose KV is complete.
        """
        roster = self._roster
        if not roster.has_any:
            return []
        has_room = self._resume_preempted(cost)
        for group in list(roster.arrived.values()):
            if not roster.has_rows(group):
                break
            roster.put(group, Phase.PREFILLING)
        if has_room:
            self._admit_waiting(cost)
        return [group for group in roster.prefilling if group.num_written_tokens == group.num_context_tokens]

    def _resume_preempted(self, cost: CostModel) -> bool:
        """Return True if no group is left that has to come back before others start."""
        for group in list(self._roster.preempted.values()):
            if not (self._roster.has_rows(group) and self._take_blocks(group)):
                return False
            if group.phase is Phase.SWAPPED:
                self._groups.rejoin(group)
            else:
                self._incoming.begin_prefill(group, cost)
            if not self._roster.is_preempted(group.handle):
                self._groups.report.resumed.append(group.handle)
        return True

    def _admit_waiting(self, cost: CostModel) -> None:
        roster = self._roster
        while (group := roster.waiting.next(roster.has_rows)) is not None and self._take_blocks(group):
            if group.receives:
                self._incoming.begin_receive(group)
            else:
                self._incoming.begin_prefill(group, cost)

    def _take_blocks(self, group: SequenceGroup) -> bool:
        return self._groups.room.take(group, self._roster.holders())


def _goal(command: Prefill | Decode | Receive) -> Goal:
    match command:
        case Prefill():
            return Goal.HAND_OVER
        case Receive(_, ReceiveKind.AHEAD):
            return Goal.CACHE
        case _:
            return Goal.DECODE


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
