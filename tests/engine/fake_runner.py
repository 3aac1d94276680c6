"""A model whose logits are a pure function of the tokens it finds in its paged pool.

It keeps tokens instead of keys and values: a wrong block table, position, slot, fork or copy shows as wrong
tokens, or at once as a broken assertion.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from engine.execution.flight import StepMark
from engine.execution.stages import Passed
from engine.model.attention.step_batch import StepBatch, count_decodes


def logits_after(tokens: Sequence[int], vocab_size: int) -> NDArray[np.float64]:
    """Return the fake model's token after `tokens`, distinct for every history."""
    seed = zlib.crc32(np.asarray(tokens, dtype=np.int64).tobytes())
    return np.random.default_rng(seed).normal(scale=2.0, size=vocab_size)


def greedy(prompt: Sequence[int], num_tokens: int, vocab_size: int) -> list[int]:
    """The dumb reference: the whole history anew for each token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(logits_after(tokens, vocab_size).argmax()))
    return tokens[len(prompt) :]


STEP_S = 0.125
"""How long the fake device takes for a step."""


class LateMark(StepMark):
    """The mark of one step's end on a `FakeRunner`."""

    def __init__(self, runner: FakeRunner) -> None:
        super().__init__(torch.device("cpu"))
        self._runner = runner
        self._number = 0

    def end(self) -> None:
        self._number = self._runner.num_steps

    def wait(self) -> None:
        self._runner.end_step(self._number)

    def seconds(self) -> float:
        return STEP_S


class FakeRunner:
    """A pool of (token, position) per slot."""

    def __init__(
        self, num_blocks: int, block_size: int, vocab_size: int, num_seen: int | None = None
    ) -> None:
        self.block_size = block_size
        self.num_seen = num_seen
        """Only so many of the last tokens matter, so that outputs repeat themselves; None: all do."""
        self.vocab_size = vocab_size
        self.pool = torch.full((num_blocks, block_size, 2), -1, dtype=torch.int64)
        self.batches: list[tuple[int, int]] = []
        """(sequences, tokens) of every step."""
        self.poison: int | None = None
        """A token after which the logits are NaN."""
        self.error: Exception | None = None
        """Raised by the next step."""
        self.late_error: Exception | None = None
        """Raised by who waits for the next step that is over."""
        self.log: list[tuple[str, int]] = []
        """Events with the number of their step, in order."""
        self.num_steps = 0
        self._in_flight: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None

    def new_mark(self) -> LateMark:
        """For a loop that is to see the steps as a GPU's: over when somebody waits for them, and not before.

        What a step computes is right at once, as it is for what comes behind it in a stream. When it is over
        it writes again: whoever got its blocks too early finds them overwritten.
        """
        if self._in_flight is None:
            self._in_flight = {}
        return LateMark(self)

    @property
    def blocks_in_flight(self) -> set[int]:
        """Blocks that steps in flight write to."""
        steps = (self._in_flight or {}).values()
        return {slot // self.block_size for slots, _ in steps for slot in slots.tolist()}

    def end_step(self, number: int) -> None:
        self.log.append(("over", number))
        assert self._in_flight is not None
        for earlier in [entry for entry in self._in_flight if entry <= number]:
            slots, values = self._in_flight.pop(earlier)
            self.pool.view(-1, 2)[slots] = values
        if self.late_error is not None:
            error, self.late_error = self.late_error, None
            raise error

    def forward(self, batch: StepBatch) -> torch.Tensor:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        starts, lens = batch.cu_seqlens_q.tolist(), batch.context_lens.tolist()
        self.batches.append((len(lens), starts[-1]))
        slots = batch.slot_mapping
        is_stored = slots >= 0
        assert len(set(slots[is_stored].tolist())) == int(is_stored.sum())
        assert len(slots) == len(batch.token_ids) == len(batch.positions) == starts[-1]
        assert batch.max_context_len == max(lens)
        assert batch.num_decodes == count_decodes([b - a for a, b in pairwise(starts)])
        values = torch.stack([batch.token_ids, batch.positions], dim=1)
        self.pool.view(-1, 2)[slots[is_stored]] = values[is_stored]
        self.num_steps += 1
        if self._in_flight is not None:
            self.log.append(("launched", self.num_steps))
            self._in_flight[self.num_steps] = slots.clone(), values
        wanted = batch.logit_rows.tolist()
        assert wanted == sorted(set(wanted))
        rows = [self._logits(batch, *self._place(starts, row)) for row in wanted]
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, self.vocab_size)

    def _place(self, starts: list[int], row: int) -> tuple[int, int]:
        """The sequence of a token of the step, and how many of its tokens come after that one."""
        place = next(place for place, end in enumerate(starts[1:]) if row < end)
        return place, starts[place + 1] - 1 - row

    def _logits(self, batch: StepBatch, place: int, num_after: int) -> NDArray[np.float64]:
        length = int(batch.context_lens[place]) - num_after
        table = batch.block_tables[place, : -(-length // self.block_size)].long()
        context = self.pool[table].reshape(-1, 2)[:length]
        assert context[:, 1].tolist() == list(range(length)), "a slot holds another position than its own"
        tokens = context[:, 0].tolist()
        if self.poison is not None and tokens[-1] == self.poison:
            return np.full(self.vocab_size, np.nan)
        seen = tokens if self.num_seen is None else tokens[-self.num_seen :]
        return logits_after(seen, self.vocab_size)


class FakeStages:
    """Stages of which the first computes all on a `FakeRunner`, and the others let a step wait.

    When a step has passed, it writes again: blocks that others got too early are found overwritten.
    """

    def __init__(self, num_stages: int, seed: int | None = 0) -> None:
        """Without a seed, a step has passed only when somebody waits for it."""
        self.num_stages = num_stages
        self.most_in_flight = 0
        self._rng = None if seed is None else random.Random(seed)
        self._runner: FakeRunner | None = None
        self._sent: deque[tuple[int, torch.Tensor]] = deque()

    def compute_with(self, runner: FakeRunner) -> None:
        self._runner = runner
        runner.new_mark()

    def send(self, batch: StepBatch) -> None:
        assert self._runner is not None
        assert len(self._sent) <= self.num_stages, "more steps than slots"
        logits = self._runner.forward(batch)
        self._sent.append((self._runner.num_steps, logits))
        self.most_in_flight = max(self.most_in_flight, len(self._sent))

    def has_passed(self) -> bool:
        assert self._sent
        return self._rng is not None and self._rng.random() < 0.3

    def receive(self) -> Passed:
        assert self._runner is not None
        number, logits = self._sent.popleft()
        self._runner.end_step(number)
        return Passed(logits, 0.0)
