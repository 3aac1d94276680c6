"""Speculative decoding: tokens are drafted, computed behind the newest ones, and accepted if they are drawn.

Each token is drawn from the logits at its place, with the noise of its place, as if the tokens before it had
been computed one by one. A drafted token is accepted if it is the one that is drawn. So the outputs, random
ones included, are the same as without drafts, and not only their distribution is: no draw depends on a draft.

A row of the sampling table belongs to each drafted token, behind those of the batch: its parameters, the
counts of its penalties, its bad words and the state of its grammar are those behind that token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.core.step import Step
from engine.core.worker_core import WorkerCore
from engine.device.host_copies import upload
from engine.execution.device_rows import DeviceRows
from engine.execution.flight import Flight
from engine.sampling.drawn import Drawn, Sampled
from engine.sampling.sampling_table import SamplingTable
from scheduling.speculation import MOST_DRAFTS, Offer

MAX_DRAFT_ROWS = 64
"""Drafted tokens of one step. Their logits are 33 MB for a vocabulary of 128k in float32."""

Draw = Callable[[Tensor, SamplingTable, NDArray[np.int64], int], Drawn]


class Drafting:
    """Drafts for the rows of a batch. Nothing is in flight when a step with drafts is launched."""

    def __init__(self, core: WorkerCore, rows: DeviceRows, draw: Draw, clock: Callable[[], float]) -> None:
        self._core = core
        self._batch = core.batch
        self._rows = rows
        self._sampling = rows.sampling
        self._draw = draw
        self._clock = clock
        self._first = core.batch.max_rows
        """The row of the sampling table that the first drafted token has."""

    def propose(self, step: Step, forced: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """Return the drafts that the step verifies, by row, behind the newest and the `forced` tokens.

        Rows whose log-probabilities are wanted have none: each of their tokens is told with its own.
        """
        offered = {}
        for row in np.flatnonzero(~self._sampling.wants_logprobs[: step.num_decodes]).tolist():
            draft = self._draft_of(row, forced.get(row, ()))
            if draft:
                offered[row] = draft
        if not offered:
            return {}
        table, positions = self._rows.drafts, self._batch.positions
        offers = [
            Offer(row, int(positions[row]) + 1, len(draft), table.acceptance(row).rate)
            for row, draft in offered.items()
        ]
        most = min(MAX_DRAFT_ROWS, self._core.limits.token_budget - step.shape.num_tokens)
        lengths = self._core.choose_drafts(step, offers, self._clock(), most)
        for row in offered.keys() - lengths.keys():
            table.acceptance(row).recover()
        return {row: offered[row][:num] for row, num in sorted(lengths.items())}

    def describe(self, drafts: Mapping[int, Sequence[int]], forced: Mapping[int, Sequence[int]]) -> list[int]:
        """Set the sampling parameters of each drafted token; return the rows of those that have a grammar."""
        begin = self._first
        for row, draft in drafts.items():
            output = self._batch.choices[row].output_token_ids
            targets = range(begin, begin + len(draft))
            self._sampling.spread(row, targets, draft, [*output, *forced.get(row, ())])
            begin = targets.stop
        has_grammar = self._sampling.masks.has_grammar[self._first : begin]
        return (self._first + np.flatnonzero(has_grammar)).tolist()

    def verify(self, flight: Flight, logits: Tensor) -> None:
        """Accept what is drawn of each draft, and let its row draw the token behind that.

        `logits` [drafted tokens, vocab] are those behind each of them.
        """
        step, drafts, sampling = flight.step, flight.drafts, self._sampling
        assert flight.drawn is not None
        places = [place for draft in drafts.values() for place in range(1, len(draft) + 1)]
        owners = np.repeat(list(drafts), [len(draft) for draft in drafts.values()])
        indexes = self._batch.num_outputs[owners] + np.array(places)
        rows = range(self._first, self._first + len(places))
        # A row whose grammar cannot go on has no finite logit then. The step that reaches it says why.
        sampling.masks.stuck([row for row in rows if sampling.masks.has_grammar[row]])
        behind = self._draw(logits, sampling, indexes, self._first).wait()
        sampled = flight.drawn.wait()
        accepted: dict[int, int] = {}
        begin = 0
        for row, draft in drafts.items():
            place = row - step.first_row
            own = slice(begin, begin + len(draft))
            drawn = [int(sampled.token_ids[place]), *behind.token_ids[own].tolist()]
            is_broken = [bool(sampled.is_broken[place]), *behind.is_broken[own].tolist()]
            num = num_accepted(draft, drawn, is_broken)
            self._rows.drafts.acceptance(row).observe(len(draft), num)
            if num:
                accepted[row] = num
                sampled.token_ids[place] = drawn[num]
                flight.forced[row] = [*flight.forced.get(row, ()), *draft[:num]]
                if sampling.has_penalties[row]:
                    sampling.counts.add_to(row, drawn[1 : num + 1])
            begin = own.stop
        flight.drawn = _again(sampled, logits.device)
        self._core.groups.report.drafted_tokens += len(places)
        self._core.accept_drafts(step, accepted)

    def _draft_of(self, row: int, forced: Sequence[int]) -> list[int]:
        choice = self._batch.choices[row]
        most = min(MOST_DRAFTS, choice.limit - int(self._batch.num_outputs[row]) - 1)
        draft = self._rows.drafts.draft(row, choice, forced, most)
        if draft and self._sampling.masks.has_grammar[row]:
            return draft[: self._sampling.masks.follower(row).num_allowed(draft)]
        return draft


def num_accepted(draft: Sequence[int], drawn: Sequence[int], is_broken: Sequence[bool]) -> int:
    """Return how many tokens of a draft are accepted; `drawn` has one token more, the one behind it.

    That behind the last accepted one is not broken: where logits are, the next step is to find it.
    """
    for place, token_id in enumerate(draft):
        if is_broken[place + 1] or drawn[place] != token_id:
            return place
    return len(draft)


def _again(sampled: Sampled, device: torch.device) -> Drawn:
    token_ids, is_broken = (upload(column, device) for column in (sampled.token_ids, sampled.is_broken))
    return Drawn(token_ids, is_broken, lambda: sampled.logprobs)
