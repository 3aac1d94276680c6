"""Launches a step: assembles its tensors, runs the model and draws the tokens.

A step that goes through a pipeline is sent, and its tokens are drawn when it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from engine.core.batch import Step
from engine.core.sequence import SequenceGroup
from engine.core.turns.worker_core import Copies, WorkerCore
from engine.device import upload
from engine.execution.device_rows import DeviceRows, StepAssembler
from engine.execution.drafting import Drafting
from engine.execution.flight import Flight
from engine.execution.stages import Runner, Stages
from engine.sampling.prompt_logprobs import ROWS_AT_ONCE, TakenRows
from engine.sampling.sampler import Draw


class Launcher:
    """Gives the device its work. `pool` is the runner's KV [num_blocks, ...].

    Where it `takes_forced`, tokens that a grammar leaves no choice about need no step of their own.
    """

    def __init__(
        self,
        runner: Runner,
        pool: Tensor,
        core: WorkerCore,
        rows: DeviceRows,
        assembler: StepAssembler,
        draw: Draw,
        *,
        prompt_rows_at_once: int = ROWS_AT_ONCE,
        takes_forced: bool = True,
        drafting: Drafting | None = None,
    ) -> None:
        self._runner = runner
        self._pool = pool
        self._core = core
        self._batch = core.batch
        self._rows = rows
        self._assembler = assembler
        self._draw = draw
        self._prompt_rows_at_once = prompt_rows_at_once
        self._takes_forced = takes_forced
        self._drafting = drafting

    def launch(self, flight: Flight, newest: Tensor | None) -> None:
        """Launch a step, and append its tokens to the rows as far as they are known to come.

        `newest` is what the step in flight draws. Raises whatever the model does.
        """
        step = flight.step
        self._core.cover(step)
        flight.forced = self._assembler.force(step.num_decodes, self._num_forced(step))
        self._core.skip(step, {row: len(tokens) for row, tokens in flight.forced.items()})
        self._draft(flight)
        draft_rows = self._describe_drafts(flight)
        batch = self._assembler.assemble(step.rows, step.chunks, flight.forced, flight.drafts)
        if newest is not None:
            batch = batch.with_newest(newest)
        else:
            assert not self._rows.in_flight[: step.num_decodes].any(), "a token that no step draws"
        self._assembler.begin_restricting(step.num_decodes, draft_rows)
        flight.num_restricted = step.num_decodes
        try:
            logits = self._runner.forward(batch)
        finally:
            self._assembler.end_restricting()
        draft_logits = logits
        if flight.drafts:
            logits, draft_logits = _parted(logits, flight.drafts)
        if any(chunk.prompt_rows for chunk in step.chunks):
            logits = self._take_prompt_rows(flight, logits, range(step.num_decodes), step.num_decodes)
        self._core.join(step)
        self._draw_and_advance(flight, logits, draft_logits, step.num_decodes, ())
        flight.mark.end()

    def send(self, flight: Flight, stages: Stages) -> None:
        """Send a step through a pipeline. Raises whatever its first stage does; then the step is nowhere."""
        step = flight.step
        self._core.cover(step)
        if self._drafting is not None:
            self._assembler.follow(step.rows)
            self._draft(flight)
        stages.send(self._assembler.assemble(step.rows, step.chunks, {}, flight.drafts))
        self._core.send(step)

    def receive(self, flight: Flight, logits: Tensor) -> None:
        """Draw the tokens of a step that was sent, whose logits are these."""
        step, num_sent = flight.step, flight.step.num_decodes
        running = self._core.gather(step)
        draft_logits = logits
        if flight.drafts:
            logits, draft_logits = _parted(logits, flight.drafts)
            draft_logits = draft_logits[upload(flight.keep_drafts(running), logits.device)]
        is_smaller = len(running) < num_sent or any(chunk.is_void for chunk in step.chunks)
        if is_smaller or any(chunk.prompt_rows for chunk in step.chunks):
            logits = self._take_prompt_rows(flight, logits, running, num_sent)
        # Only now, as the steps in flight share the rows that drafted tokens have in the sampling table.
        draft_rows = self._describe_drafts(flight)
        self._draw_and_advance(flight, logits, draft_logits, len(running), draft_rows)

    def start(self, group: SequenceGroup) -> None:
        """Let the choices of an adopted group go on."""
        self._copy(self._core.go_on(group))

    def _num_forced(self, step: Step) -> int:
        """Return how many tokens more than one for each row a step may compute."""
        return max(0, self._core.limits.token_budget - step.shape.num_tokens) if self._takes_forced else 0

    def _copy(self, copies: Copies) -> None:
        if copies:
            sources, targets = (
                upload(np.array(blocks), self._pool.device) for blocks in zip(*copies, strict=True)
            )
            self._pool[targets] = self._pool[sources]

    def _take_prompt_rows(
        self, flight: Flight, logits: Tensor, running: Sequence[int], num_decodes: int
    ) -> Tensor:
        """Take the rows of `logits` that are for prompts' own tokens, and return the rows to draw from.

        Of `num_decodes` decodes, these are `running`.
        """
        drawn, at = list(running), num_decodes
        for chunk in flight.step.chunks:
            num = len(chunk.prompt_rows)
            if num and not chunk.is_void:
                own = logits[at : at + num]
                taken = TakenRows(chunk.group, chunk.prompt_rows, own, rows_at_once=self._prompt_rows_at_once)
                flight.prompt_rows.append(taken)
                chunk.group.num_launched_prompt_rows = chunk.prompt_rows.stop
            at += num
            if chunk.wants_logits:
                if not chunk.is_void:
                    drawn.append(at)
                at += 1
        return logits[upload(np.array(drawn, dtype=np.int64), logits.device)]

    def _draft(self, flight: Flight) -> None:
        """Draft tokens for a step."""
        if self._drafting is not None and flight.step.num_decodes:
            self._drafting.propose(flight)

    def _describe_drafts(self, flight: Flight) -> list[int]:
        """Set rows of the sampling table for a step's drafted tokens; return those that have a grammar."""
        return self._drafting.describe(flight) if self._drafting is not None and flight.drafts else []

    def _draw_and_advance(
        self,
        flight: Flight,
        logits: Tensor,
        draft_logits: Tensor,
        num_decodes: int,
        draft_rows: Sequence[int],
    ) -> None:
        """Draw a token for each decode and each choice that joins, and append them.

        What the grammars of `draft_rows` allow is not found yet.
        """
        step = flight.step
        repeats = [1] * num_decodes + [group.num_rows for group in step.joining]
        if step.choices:
            self._draw_tokens(flight, _repeated(logits, repeats), draft_logits, draft_rows)
        self._copy(self._core.advance(step))

    def _draw_tokens(
        self, flight: Flight, logits: Tensor, draft_logits: Tensor, draft_rows: Sequence[int]
    ) -> None:
        """Draw a token for each row of the step, before any of them leaves, and accept drafts."""
        table, rows = self._rows, flight.step.rows
        flight.stuck = self._assembler.restrict_draws(rows, flight.num_restricted, draft_rows)
        flight.drawn = self._draw(logits, table.sampling, self._batch.num_outputs[rows], rows)
        if flight.drafts and self._drafting is not None:
            self._drafting.verify(flight, draft_logits)
        table.put_in_flight(rows)


def _parted(logits: Tensor, drafts: Mapping[int, Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the logits that rows draw from without drafts, and those behind each drafted token."""
    is_drafted = np.zeros(logits.shape[0], dtype=np.bool_)
    num_before = 0
    for place, tokens in drafts.items():
        begin = place + num_before + 1
        is_drafted[begin : begin + len(tokens)] = True
        num_before += len(tokens)
    places = (upload(np.flatnonzero(which), logits.device) for which in (~is_drafted, is_drafted))
    own, drafted = (logits[some] for some in places)
    return own, drafted


def _repeated(logits: Tensor, repeats: Sequence[int]) -> Tensor:
    """Return each row of `logits` as often as `repeats` says."""
    if max(repeats) == 1:
        return logits
    return logits[upload(np.repeat(np.arange(len(repeats)), repeats), logits.device)]
