"""How sequences come in: the groups made of them wait for a grammar, an adapter, blocks and rows."""

from __future__ import annotations

from engine.core.admission import EngineLimits, Refuse
from engine.core.commands import AdapterLoaded, Decode, GrammarReady, Prefill, Receive
from engine.core.groups.groups import Groups
from engine.core.groups.incoming import Incoming
from engine.core.memory.block_tables import BlockTables
from engine.core.report import Failure
from engine.core.sequence import Goal, Phase, SequenceGroup
from model_output.text.output import output_rules
from scheduling.cost_model import CostModel
from scheduling.request import FailureReason, ReceiveKind


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
