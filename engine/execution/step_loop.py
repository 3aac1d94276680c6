"""The step loop: commands in, one ragged batch through the model, a report out; and again.

`engine.core.WorkerCore` decides; the loop carries out its steps with a real model. It is synchronous and
single-threaded: no asyncio, no RPC, no locks. Only the thread that calls `run` touches the core.

Where launching a step does not wait for it, on a GPU, the host is one step behind the device, which therefore
never waits for the host: a turn launches step N + 1 and then processes step N. The rows' newest tokens go
from one step to the next on the device. What might go wrong in between, and why it does not:

* A choice has ended at N (end token, stop string, broken logits, cancelled) and N + 1 has a row for it: what
  is drawn there is dropped, and not reported. Its penalties' counts are its row's, which is set up anew for
  the next choice, on the device and so in order. At its limit of tokens, which is known ahead, it leaves the
  batch at the launch of its last step.
* Blocks that are not needed any more are given back when the step that was launched last by then is over:
  until then it may write to them, and their next owner may fill them from outside of the stream.
* Blocks are offered to others, and found in the prefix cache, once the step that filled them is over. So the
  content of a cached block that leaves the pool for another tier is there, and a block that is read into was
  free: no step in flight writes to either of them.
* A choice that loses its blocks to others or goes on elsewhere does so with all its tokens: the step in
  flight is waited for first. So it is before the loop waits for commands, and when a launch fails: the
  tokens of the step before are right. A step that fails on the device fails those that it computed for.
* Which tokens a bad word or a grammar forbids depends on those before: while a row has a grammar or bad
  words of several tokens, the step in flight is waited for first.
* Steps are timed by the device. What the step in flight will bring is foreseen where a policy asks when the
  next tokens are due; when they came is recorded once they are known.

A pipeline (`engine.execution.stages`) has more steps in flight, none of which has a row of another one. A
turn sends a step, whose first stage is computed then, and takes in those that have passed all stages. Their
tokens are drawn then, and only then do rows join, advance and leave; so a grammar or a bad word waits for
nothing. Drafts are found when a step is sent, as the newest tokens of its rows are known then, and verified
when its tokens are drawn. What is said above of blocks holds for all steps in flight.

Elsewhere each step is waited for at once, and the order of things is the same.
"""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from engine.core.adapters import AdapterSlots
from engine.core.admission import EngineLimits, refusal
from engine.core.commands import Command, PreCopy, StopAndCopy
from engine.core.memory.block_manager import BlockManager
from engine.core.memory.block_tables import HashedNames
from engine.core.memory.stores import KVLinks, KVTiers
from engine.core.report import StepReport
from engine.core.sequence import Choice, SequenceGroup
from engine.core.turns.worker_core import WorkerCore
from engine.device import mark_steps
from engine.execution.device_rows import DeviceRows, StepAssembler
from engine.execution.draft_model import DraftEngine, DraftModel
from engine.execution.drafting import MAX_DRAFT_ROWS, Drafting
from engine.execution.flight import Flight, Postprocessor, StepMark, TokenRows
from engine.execution.launcher import Launcher
from engine.execution.stages import Runner, Stages
from engine.kv.swap_space import SwapSpace, default_slots
from engine.sampling.prompt_logprobs import ROWS_AT_ONCE
from engine.sampling.sampler import draw as draw_all
from engine.sampling.sampler import draw_each
from engine.speculation.computed_blocks import ComputedBlocks
from model_output.text.detokenizer import Detokenizer
from scheduling.cost_model import CostModel
from scheduling.policies.policy import Policy
from scheduling.step import StepPlan

LEAST_WAIT_S = 0.001
"""However short a policy would wait: a loop that asks again at once is a busy one."""


class StepLoop:
    """Runs the sequences of one worker.

    `pool` is the runner's KV [num_blocks, ...], of which the loop copies the partial blocks of forks; its
    device is where the steps run. `detokenizer` is None for a model without a tokenizer.
    `num_swap_blocks` of host memory are for sequences that give up their place in the pool; by default see
    `default_slots`. `clock` is monotonic, in seconds. A `deterministic` loop draws for each row alone. One
    that `takes_forced` computes tokens that a grammar forces together with the one before them; one that
    `speculates` does so with drafts by prompt lookup, and one with a `draft_model` with those of that model;
    it accepts the tokens that it then draws too. Where the loop `overlaps`, by default on a GPU, it takes in
    a step while the next one runs; `new_mark` times them. Where there are `stages`, these compute the steps.
    `adapters` are the slots of the runner's LoRA adapters, by digest. `tiers` have blocks that left the pool,
    and `links` lead to workers that lend theirs.
    """

    def __init__(
        self,
        runner: Runner,
        pool: Tensor,
        blocks: BlockManager,
        *,
        limits: EngineLimits,
        fingerprint: str,
        detokenizer: Detokenizer | None,
        policy: Policy,
        cost: CostModel,
        num_swap_blocks: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        deterministic: bool = False,
        takes_forced: bool = True,
        speculates: bool = False,
        draft_model: DraftEngine | None = None,
        overlaps: bool | None = None,
        stages: Stages | None = None,
        new_mark: Callable[[], StepMark] | None = None,
        adapters: AdapterSlots | None = None,
        tiers: KVTiers | None = None,
        links: KVLinks | None = None,
    ) -> None:
        assert pool.shape[0] == blocks.num_blocks
        adapters = adapters or AdapterSlots()
        self._device = pool.device
        self._blocks = blocks
        self._detokenizer = detokenizer
        size, max_rows = blocks.block_size, limits.max_num_seqs
        has_drafts = speculates or draft_model is not None
        self._rows = DeviceRows(
            max_rows,
            -(-limits.max_context // size),
            limits.vocab_size,
            pool.device,
            num_draft_rows=MAX_DRAFT_ROWS if has_drafts else 0,
            adapters=adapters.slot_of,
        )
        self._core = WorkerCore(
            blocks,
            HashedNames(fingerprint, size),
            SwapSpace(pool, default_slots(pool) if num_swap_blocks is None else num_swap_blocks),
            self._rows,
            limits=limits,
            policy=policy,
            cost=cost,
            refuse=partial(refusal, limits=limits, has_text=detokenizer is not None, adapters=adapters),
            new_choice=self._new_choice,
            tiers=tiers,
            links=links,
            num_stages=1 if stages is None else stages.num_stages,
            num_micro_batches=1 if stages is None else stages.num_stages,
            adapters=adapters,
        )
        self._clock = clock
        self._assembler = StepAssembler(self._core.batch, self._rows, size, pool.device)
        draw = draw_each if deterministic else draw_all
        drafter = None
        if draft_model is not None:
            batch, device = self._core.batch, pool.device
            computed = ComputedBlocks(blocks.num_blocks, blocks.hash_of)
            drafter = DraftModel(
                draft_model, batch, self._rows, draw, clock, computed, block_size=size, device=device
            )
        drafting = None
        if has_drafts:
            drafting = Drafting(self._core, self._rows, draw, clock, looks_up=speculates, model=drafter)
        self._launcher = Launcher(
            runner,
            pool,
            self._core,
            self._rows,
            self._assembler,
            draw,
            prompt_rows_at_once=1 if deterministic else ROWS_AT_ONCE,
            takes_forced=takes_forced,
            drafting=drafting,
        )
        self._postprocessor = Postprocessor(self._core, self._rows, size)
        if overlaps is None:
            overlaps = pool.device.type == "cuda"
        self._stages = stages
        self._num_kept = int(overlaps) if stages is None else stages.num_stages + 1
        """Steps that may still be in flight when a turn ends."""
        self._new_mark = new_mark or partial(StepMark, pool.device)
        self._flights: deque[Flight] = deque()
        """The steps that were launched and are not processed yet."""
        self._tokens = TokenRows()

    @torch.inference_mode()
    def run(
        self,
        drain: Callable[[float], Sequence[Command]],
        emit: Callable[[StepReport], None],
        stop: Callable[[], bool],
    ) -> None:
        """Step until `stop()` says so, which is asked before every turn.

        `drain(timeout_s)` returns the commands that have come; unless there are some it waits for them, for
        `timeout_s` at most or until the loop is to stop. `emit` gets a report after every step, and when
        commands alone had effects.
        """
        wait_s = 0.0
        while not stop():
            if wait_s == math.inf:
                self._core.check_integrity(is_whole=False)
            wait_s = self.turn(drain(wait_s), emit)
        self._land_all()
        self._report(emit)

    @torch.inference_mode()
    def turn(self, commands: Sequence[Command], emit: Callable[[StepReport], None]) -> float:
        """Take in commands and go on by one step; return for how long to wait for the next commands."""
        for command in commands:
            self._apply(command)
        if self._core.groups.report.parked:
            self._report(emit)  # its client waits until it goes on elsewhere: not for another step here
        if self._stages is not None and self._has_passed(self._stages):
            self._land()
            self._report(emit)  # its tokens do not wait for the first stage of the next step
        wait_s = self._go_on()
        self._report(emit)
        return wait_s

    def check_integrity(self) -> None:
        """Assert that every block and slot has the owners it should; costs O(pool), for tests.

        `run` does a part of it whenever it becomes idle.
        """
        self._core.check_integrity(is_whole=True)

    def _apply(self, command: Command) -> None:
        if isinstance(command, StopAndCopy | PreCopy):
            self._land_all()  # the worker that goes on has to know all tokens, and where their KV is
            self._core.groups.report.filled_behind = mark_steps(self._device)  # before the next step
        self._core.apply(command, self._clock())

    def _has_passed(self, stages: Stages) -> bool:
        """Return True if a step is to be taken in before the next one is sent."""
        return len(self._flights) > stages.num_stages or (bool(self._flights) and stages.has_passed())

    def _go_on(self) -> float:
        if self._flights and self._stages is None and self._assembler.depends_on_newest:
            self._land()
        mark = self._new_mark()
        self._make_room()
        self._mark_targets()
        now_s = self._clock()
        plan = self._core.plan(now_s, self._free_at(now_s), takes_rows=self._takes_rows)
        if plan.num_decodes or plan.chunks:
            self._launch(plan, mark)
        elif not self._flights:
            return max(LEAST_WAIT_S, plan.wait_s)
        else:
            self._land()
        while len(self._flights) > self._num_kept:
            self._land()
        return 0.0

    @property
    def _takes_rows(self) -> bool:
        """True unless a step with decodes is in flight for each stage.

        One more would have the rows that are left, fewer than its share, and would read all weights for them.
        """
        if self._stages is None:
            return True
        return sum(flight.step.num_decodes > 0 for flight in self._flights) < self._stages.num_stages

    def _make_room(self) -> None:
        """Find blocks for the running choices first, then for those that wait, whose blocks may be theirs."""
        self._grow_rows()
        num_rows = self._core.batch.num_rows
        for group in self._core.start_waiting():
            self._adopt(group)
        if self._core.batch.num_rows > num_rows:
            self._grow_rows()

    def _mark_targets(self) -> None:
        """Let copies to blocks that were just allocated wait for the steps so far, not for the next one."""
        report = self._core.groups.report
        if report.received_behind is None and (report.received or report.reads):
            report.received_behind = mark_steps(self._device)

    def _grow_rows(self) -> None:
        if self._flights and self._core.groups.is_short_of_blocks:
            self._land_all()  # some may end, and a choice that is preempted is so with all of its tokens
        self._core.grow_rows(self._clock())

    def _free_at(self, now_s: float) -> float:
        """Return when the device, or the first stage, is expected to be done with what it has been given."""
        if self._stages is not None or not self._flights:
            return now_s
        return max(now_s, self._flights[-1].over_at_s)

    def _launch(self, plan: StepPlan, mark: StepMark) -> None:
        """Launch a step; those before are processed only then."""
        step = self._core.begin(plan)
        over_at_s = self._free_at(self._clock()) + self._core.cost.predict(step.shape)
        flight, before = Flight(step, mark, over_at_s), self._flights[-1] if self._flights else None
        newest = None if before is None or before.drawn is None else before.drawn.token_ids
        try:
            if self._stages is None:
                self._launcher.launch(flight, newest)
            else:
                self._launcher.send(flight, self._stages)
        except Exception as error:  # noqa: BLE001 - one broken step must not end the worker; it is reported
            broken = step.groups | {choice.group for choice in self._core.batch.choices_of(step.rows)}
            self._land_all()
            with contextlib.suppress(Exception):  # the first error is reported
                mark.end()
                mark.wait()  # what was launched of it may still write
            self._fail(broken, error)
            return
        self._flights.append(flight)
        self._core.tables.hold_back(step.held)

    def _land_all(self) -> None:
        while self._flights:
            self._land()

    def _land(self) -> None:
        """Wait for the step in flight that was launched first, and process it."""
        flight = self._flights.popleft()
        if not self._flights:
            self._core.tables.hold_back(None)
        self._complete(flight)

    def _complete(self, flight: Flight) -> None:
        try:
            if self._stages is not None:
                passed = self._stages.receive()
                flight.idle_s = passed.idle_s
                self._launcher.receive(flight, passed.logits)
            flight.mark.wait()
            sampled = None if flight.drawn is None else flight.drawn.wait()
        except Exception as error:  # noqa: BLE001 - as at the launch
            self._core.num_steps += 1
            self._fail(flight.step.groups, error)
        else:
            is_overtaken = self._stages is None and any(each.step.num_decodes for each in self._flights)
            adopted = self._postprocessor.process(
                flight,
                sampled,
                self._tokens,
                self._clock(),
                is_latest=not self._num_kept,
                is_overtaken=is_overtaken,
            )
            for group in adopted:
                self._adopt(group)
            report = self._core.groups.report
            report.step_seconds = flight.mark.seconds() - flight.drafting_s - flight.idle_s
            report.drafting_seconds = flight.drafting_s
        self._core.groups.room.give_back(flight.step.held)

    def _adopt(self, group: SequenceGroup) -> None:
        """The context is complete and its first tokens came with it: report them again and go on."""
        self._core.adopt(group)
        self._tokens.add_first_tokens(group)
        try:
            self._launcher.start(group)
        except Exception as error:  # noqa: BLE001 - as in a step
            self._fail({group}, error)

    def _new_choice(self, group: SequenceGroup, index: int) -> Choice:
        if self._detokenizer is None:
            return group.new_choice(index, None)
        spec = group.spec
        text = self._detokenizer.stream(
            spec.prompt_token_ids, skip_special_tokens=spec.stop.skip_special_tokens
        )
        return group.new_choice(index, text)

    def _fail(self, groups: Iterable[SequenceGroup], error: Exception) -> None:
        self._core.groups.report.step_error = "".join(traceback.format_exception(error))
        self._core.fail(groups, f"the step failed: {type(error).__name__}: {error}")

    def _report(self, emit: Callable[[StepReport], None]) -> None:
        """Report what has happened, if anything has."""
        if not self._core.groups.report.has_events:
            return
        self._mark_targets()
        report, events = self._core.take_report(), self._blocks.take_cache_events()
        report.load = self._core.load(sum(len(flight.step.last) for flight in self._flights))
        report.tokens, self._tokens = self._tokens.finish(), TokenRows()
        report.cached_hashes, report.evicted_hashes = events.added, events.removed
        emit(report)
