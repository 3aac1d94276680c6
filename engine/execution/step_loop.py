"""The step loop: commands in, one ragged batch through the model, a report out; and again.

Synchronous and single-threaded: no asyncio, no RPC, no locks. Only the thread that calls `run` touches the
batch, the groups and the block manager.

Where launching a step does not wait for it, on a GPU, the host is one step behind the device, which so never
waits for it: a turn launches step N + 1 and then takes step N into the books. The rows' newest tokens go from
one step to the next on the device. What might go wrong in between, and why it does not:

* A choice has ended at N (end token, stop string, broken logits, cancelled) and N + 1 has a row for it: what
  is drawn there is dropped, and told to nobody. Its penalties' counts are its row's, which is set up anew for
  whoever is next, on the device and so in order. At its limit of tokens, which is known ahead, it leaves the
  batch at the launch of its last step.
* Blocks that nobody needs any more are given back when the step that was launched last by then is over: until
  then it may write to them, and whoever gets them may fill them from outside of the stream.
* Blocks are offered to others, and found in the prefix cache, once the step that filled them is over.
* Whoever is to lose its blocks to others or to go on elsewhere does so with all its tokens: the step in
  flight is waited for first. So it is before the loop waits for commands, and when a launch fails: the
  tokens of the step before are right. A step that fails on the device fails those that it computed for.
* A token that would complete a bad word depends on those before it: while a row has bad words of several
  tokens, the step in flight is waited for first.
* Steps are timed by the device. What the step in flight will bring is foreseen where a policy asks when the
  next tokens are due; when they came is written down once they are known.

Elsewhere each step is waited for at once, and the order of things is the same.
"""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.core.admission import EngineLimits
from engine.core.batch import Batch
from engine.core.commands import Command, HandOver, Lend, SetCost
from engine.core.groups import Groups
from engine.core.memory.block_manager import BlockManager
from engine.core.memory.block_tables import BlockTables
from engine.core.report import Load, StepReport
from engine.core.report_builder import ReportBuilder, first_token_rows
from engine.core.sequence import SequenceGroup
from engine.device.copy_stream import mark_steps
from engine.execution.flight import CudaMark, Flight, HostMark, Mark
from engine.execution.launcher import Launcher, Runner
from engine.execution.postprocessing import Books
from engine.kv.swap_space import SwapSpace, default_slots
from engine.sampling.prompt_logprobs import ROWS_AT_ONCE, within_rows
from engine.sampling.sampler import draw as draw_all
from engine.sampling.sampler import draw_each
from output_text.detokenizer import Detokenizer
from scheduling.cost.cost_model import CostModel, StepShape
from scheduling.policies.policy import Policy
from scheduling.request import FailureReason
from scheduling.step import StepPlan, StepView

LEAST_WAIT_S = 0.001
"""However short a policy would wait: a loop that asks again at once is a busy one."""


class StepLoop:
    """Runs the sequences of one worker.

    `pool` is the runner's KV [num_blocks, ...], of which the loop copies the partial blocks of forks; its
    device is where the steps run. `detokenizer` is None for a model without a tokenizer. `num_swap_blocks` of
    host memory are for sequences that give up their place in the pool; by default see `default_slots`.
    `clock` is monotonic, in seconds. A `deterministic` loop draws for each row alone. Where the loop
    `overlaps`, by default on a GPU, it takes in a step while the next one runs; `new_mark` times them.
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
        overlaps: bool | None = None,
        new_mark: Callable[[], Mark] | None = None,
    ) -> None:
        assert pool.shape[0] == blocks.num_blocks
        self._device = pool.device
        self._blocks = blocks
        self._limits = limits
        size = blocks.block_size
        max_blocks = -(-limits.max_context // size)
        self._batch = Batch(
            limits.max_num_seqs, max_blocks, blocks.block_size, limits.vocab_size, pool.device
        )
        self._tables = BlockTables(blocks, fingerprint, reserves_maximum=policy.reserves_maximum)
        swap = SwapSpace(pool, default_slots(pool) if num_swap_blocks is None else num_swap_blocks)
        self._groups = Groups(self._tables, self._batch, blocks, swap, limits, detokenizer, clock)
        self._clock = clock
        self._policy = policy
        self._cost = cost
        draw = draw_each if deterministic else draw_all
        self._launcher = Launcher(
            runner,
            pool,
            self._groups,
            self._batch,
            self._tables,
            draw,
            prompt_rows_at_once=1 if deterministic else ROWS_AT_ONCE,
        )
        self._books = Books(self._groups, self._batch, self._tables, size, clock)
        is_cuda = pool.device.type == "cuda"
        self._overlaps = is_cuda if overlaps is None else overlaps
        device_mark: Callable[[], Mark] = CudaMark if is_cuda else HostMark
        self._new_mark = new_mark or device_mark
        self._flight: Flight | None = None
        """The step that was launched last, until it is in the books."""
        self._num_steps = 0

    @torch.inference_mode()
    def run(
        self,
        drain: Callable[[float], Sequence[Command]],
        emit: Callable[[StepReport], None],
        stop: Callable[[], bool],
    ) -> None:
        """Step until `stop()` says so, which is asked before every turn.

        `drain(timeout_s)` answers the commands that have come; unless there are some it waits for them, for
        `timeout_s` at most or until the loop is to stop. `emit` gets a report after every step, and when
        commands alone had effects.
        """
        wait_s = 0.0
        while not stop():
            if wait_s == math.inf:
                self._groups.check_some()
            wait_s = self.turn(drain(wait_s), emit)
        self._land()
        self._tell(emit)

    @torch.inference_mode()
    def turn(self, commands: Sequence[Command], emit: Callable[[StepReport], None]) -> float:
        """Take in commands and go on by one step; answers for how long to wait for the next commands."""
        for command in commands:
            self._apply(command)
        if self._groups.report.parked:
            self._tell(emit)  # its client waits for whoever goes on: not for another step here
        wait_s = self._go_on()
        self._tell(emit)
        return wait_s

    def check_integrity(self) -> None:
        """Assert that every block and slot has the owners it should; costs O(pool), for tests.

        `run` does a part of it whenever it becomes idle.
        """
        self._groups.check_integrity()

    def _apply(self, command: Command) -> None:
        if isinstance(command, SetCost):
            self._cost = command.cost
            return
        if isinstance(command, HandOver | Lend):
            self._land()  # whoever goes on elsewhere has to know all tokens, and where their KV is
            self._groups.report.filled_behind = mark_steps(self._device)  # before the next step
        self._groups.apply(command)

    def _go_on(self) -> float:
        if self._flight is not None and self._batch.depends_on_newest:
            self._land()
        mark = self._new_mark()
        self._make_room()
        plan = self._policy.plan(self._view())
        if plan.num_decodes or plan.chunks:
            self._launch(plan, mark)
        elif self._flight is None:
            return max(LEAST_WAIT_S, plan.wait_s)
        else:
            self._land()
        if not self._overlaps:
            self._land()
        return 0.0

    def _make_room(self) -> None:
        """Blocks for the running choices first, then for those that wait, whose blocks may be theirs."""
        self._grow_rows()
        num_rows = self._batch.num_rows
        for group in self._groups.start_waiting():
            self._adopt(group)
        if self._batch.num_rows > num_rows:
            self._grow_rows()

    def _grow_rows(self) -> None:
        if self._flight is not None and self._groups.is_short_of_blocks:
            self._land()  # it may end some, and whoever gives way does so with all of its tokens
        self._groups.grow_rows(self._cost)

    def _view(self) -> StepView:
        now_s = self._clock()
        return StepView(
            self._batch.decode_load(self._free_at(now_s)),
            self._groups.prefill_work(now_s),
            self._limits.token_budget,
            self._limits.max_num_seqs,
            self._cost,
        )

    def _free_at(self, now_s: float) -> float:
        """When the device is expected to be done with what it has been given."""
        return now_s if self._flight is None else max(now_s, self._flight.over_at_s)

    def _launch(self, plan: StepPlan, mark: Mark) -> None:
        """Launch a step, and only then take in the one before."""
        num_decodes, num_rows = plan.num_decodes, self._batch.num_rows
        assert num_decodes in (0, num_rows), f"{num_decodes} of {num_rows} decodes are planned"
        chunks = within_rows([(self._groups[chunk.handle], chunk.num_tokens) for chunk in plan.chunks])
        parts = [(group.num_computed_tokens, num_tokens) for group, num_tokens in chunks]
        shape = StepShape.of(num_decodes, self._batch.num_context_tokens if num_decodes else 0, parts)
        over_at_s = self._free_at(self._clock()) + self._cost.predict(shape)
        flight, before = Flight(mark, shape, [group for group, _ in chunks], over_at_s), self._flight
        first_row = num_rows - num_decodes
        newest = None if before is None or before.drawn is None else before.drawn.token_ids
        try:
            self._launcher.launch(flight, num_decodes, chunks, newest)
        except Exception as error:  # noqa: BLE001 - one broken step must not end the worker; it is reported
            broken = flight.groups | {choice.group for choice in self._batch.sequences[first_row:]}
            self._land()
            with contextlib.suppress(Exception):  # the first error is told
                mark.end()
                mark.wait()  # what was launched of it may still write
            self._fail(broken, error)
            return
        self._flight = flight
        self._tables.hold_back(flight.held)
        if before is not None:
            self._complete(before)

    def _land(self) -> None:
        """Wait for the step in flight, if there is one, and take it in."""
        flight, self._flight = self._flight, None
        if flight is not None:
            self._tables.hold_back(None)
            self._complete(flight)

    def _complete(self, flight: Flight) -> None:
        self._num_steps += 1
        try:
            flight.mark.wait()
            sampled = None if flight.drawn is None else flight.drawn.wait()
        except Exception as error:  # noqa: BLE001 - as at the launch
            self._fail(flight.groups, error)
        else:
            is_overtaken = self._flight is not None and self._flight.shape.num_decodes > 0
            for group in self._books.enter(flight, sampled, is_overtaken=is_overtaken):
                self._adopt(group)
            self._groups.report.step_seconds = flight.mark.seconds()
        self._groups.give_back(flight.held)

    def _adopt(self, group: SequenceGroup) -> None:
        """The context is complete and its first tokens came with it: report them again and go on."""
        report = self._groups.report
        if self._groups.finish_prefill(group):
            report.add_prefilled(group)
        assert group.first_tokens is not None
        choices = {choice.choice: choice for choice in group.sequences}
        for first in first_token_rows(group.first_tokens):
            choice = choices.get(first.choice)
            if choice is not None:
                text, reason = choice.push(first.token_id)
                report.add_first_token(group.handle, first, text, reason)
                report.add_stop(report.num_rows - 1, choice)
        for choice in group.sequences:
            self._batch.join(choice)
        try:
            self._launcher.start(group)
        except Exception as error:  # noqa: BLE001 - as in a step
            self._fail({group}, error)

    def _fail(self, groups: set[SequenceGroup], error: Exception) -> None:
        self._groups.report.step_error = "".join(traceback.format_exception(error))
        for group in groups:
            message = f"the step failed: {type(error).__name__}: {error}"
            self._groups.fail(group, FailureReason.INTERNAL, message)

    def _tell(self, emit: Callable[[StepReport], None]) -> None:
        if not self._groups.report.is_empty:
            emit(self._finish_report())

    def _finish_report(self) -> StepReport:
        groups, blocks, batch = self._groups, self._blocks, self._batch
        built, groups.report = groups.report, ReportBuilder()
        events = blocks.take_cache_events()
        num_free = blocks.num_available_blocks
        num_last = 0 if self._flight is None else self._flight.num_last
        return StepReport(
            load=Load(
                step=self._num_steps,
                running=batch.num_rows + num_last,
                waiting=groups.queues.num_waiting_choices,
                pending_prefill_tokens=groups.queues.num_pending_tokens,
                free_blocks=num_free,
                cached_blocks=min(blocks.num_cached_blocks, num_free),
                context_tokens=batch.num_context_tokens,
                preempted=groups.queues.num_preempted_choices,
            ),
            step_seconds=built.step_seconds,
            tokens=built.finish_tokens(),
            filled=built.filled,
            filled_behind=built.filled_behind,
            received=built.received,
            received_behind=mark_steps(self._device) if built.received else None,
            prefilled=built.prefilled,
            prompt_logprobs=built.prompt_logprobs,
            failures=built.failures,
            preempted=built.preempted,
            resumed=built.resumed,
            parked=built.parked,
            freed=built.freed,
            cached_hashes=events.added,
            evicted_hashes=events.removed,
            recomputed_tokens=built.recomputed_tokens,
            shape=built.shape,
            step_error=built.step_error,
        )
