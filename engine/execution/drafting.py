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
from torch import Tensor

from engine.core.batch import Step
from engine.core.report import DraftCounts
from engine.core.turns.worker_core import WorkerCore
from engine.device import upload
from engine.execution.device_rows import DeviceRows
from engine.execution.draft_model import DraftModel
from engine.execution.flight import Flight
from engine.sampling.sampler import Draw, Drawn, Sampled
from scheduling.draft_model import ModelOffer
from scheduling.speculation import MOST_DRAFTS, Drafter, Offer

MAX_DRAFT_ROWS = 64
"""Drafted tokens of one step. Their logits are 33 MB for a vocabulary of 128k in float32."""


class Drafting:
    """Drafts for the rows of a batch, whose newest tokens are known when a step with drafts is launched.

    One that `looks_up` has drafts by prompt lookup; a `model` drafts for the rows for which these do not pay.
    """

    def __init__(
        self,
        core: WorkerCore,
        rows: DeviceRows,
        draw: Draw,
        clock: Callable[[], float],
        *,
        looks_up: bool,
        model: DraftModel | None,
    ) -> None:
        self._core = core
        self._batch = core.batch
        self._rows = rows
        self._sampling = rows.sampling
        self._draw = draw
        self._clock = clock
        self._looks_up = looks_up
        self._model = model
        self._first = core.batch.max_rows
        """The row of the sampling table that the first drafted token has."""

    def propose(self, flight: Flight) -> None:
        """Find the drafts that the step verifies behind the newest and the forced tokens of its rows.

        Rows whose log-probabilities are wanted have none: each of their tokens is told with its own.
        """
        step = flight.step
        numbers = np.arange(step.rows.start, step.rows.stop) if isinstance(step.rows, slice) else step.rows
        rows = numbers[~self._sampling.wants_logprobs[step.rows]].tolist()
        forced = {step.row_of(place): tokens for place, tokens in flight.forced.items()}
        drafts: dict[int, list[int]] = {}
        drafters: dict[int, Drafter] = {}
        if self._looks_up:
            drafts = self._look_up(step, rows, forced)
            drafters = dict.fromkeys(drafts, Drafter.LOOKUP)
        if self._model is not None:
            others = [row for row in rows if row not in drafts]
            found = self._draft(flight, others, forced, drafts, self._model)
            drafts |= found
            drafters |= dict.fromkeys(found, Drafter.MODEL)
        if drafts:
            places = {row: place for place, row in enumerate(numbers.tolist()) if row in drafts}
            flight.drafts = {place: drafts[row] for row, place in places.items()}
            flight.drafters = {place: drafters[row] for row, place in places.items()}

    def describe(self, flight: Flight) -> list[int]:
        """Set the sampling parameters of each drafted token; return the rows of those that have a grammar."""
        begin = self._first
        for place, draft in flight.drafts.items():
            row = flight.step.row_of(place)
            output = self._batch.choices[row].output_token_ids
            targets = range(begin, begin + len(draft))
            self._sampling.spread(row, targets, draft, [*output, *flight.forced.get(place, ())])
            begin = targets.stop
        has_grammar = self._sampling.masks.has_grammar[self._first : begin]
        return (self._first + np.flatnonzero(has_grammar)).tolist()

    def verify(self, flight: Flight, logits: Tensor) -> None:
        """Accept what is drawn of each draft, and let its choice draw the token behind that.

        `logits` [drafted tokens, vocab] are those behind each of them.
        """
        step, drafts, sampling = flight.step, flight.drafts, self._sampling
        assert flight.drawn is not None
        ahead = [num for draft in drafts.values() for num in range(1, len(draft) + 1)]
        lengths = [len(draft) for draft in drafts.values()]
        owners = np.repeat([step.row_of(place) for place in drafts], lengths)
        indexes = self._batch.num_outputs[owners] + np.array(ahead)
        rows = range(self._first, self._first + len(ahead))
        # A row whose grammar cannot go on has no finite logit then. The step that reaches it says why.
        sampling.masks.stuck([row for row in rows if sampling.masks.has_grammar[row]])
        behind = self._draw(logits, sampling, indexes, slice(rows.start, rows.stop)).wait()
        sampled = flight.drawn.wait()
        accepted: dict[int, int] = {}
        begin = 0
        for place, draft in drafts.items():
            own = slice(begin, begin + len(draft))
            drawn = [int(sampled.token_ids[place]), *behind.token_ids[own].tolist()]
            is_broken = [bool(sampled.is_broken[place]), *behind.is_broken[own].tolist()]
            num = num_accepted(draft, drawn, is_broken)
            row = step.row_of(place)
            self._observe(row, flight.drafters[place], len(draft), num)
            if num:
                accepted[place] = num
                sampled.token_ids[place] = drawn[num]
                flight.forced[place] = [*flight.forced.get(place, ()), *draft[:num]]
                if sampling.has_penalties[row]:
                    sampling.counts.add_to(row, drawn[1 : num + 1])
            begin = own.stop
        flight.drawn = _again(sampled, logits.device)
        self._core.accept_drafts(step, accepted)

    def _look_up(
        self, step: Step, rows: Sequence[int], forced: Mapping[int, Sequence[int]]
    ) -> dict[int, list[int]]:
        """Return the drafts by prompt lookup that pay, by row."""
        table, positions, offered = self._rows.drafts, self._batch.positions, {}
        for row in rows:
            draft = table[row].look_up(self._batch.choices[row], forced.get(row, ()), self._most(row))
            if draft := self._allowed(row, draft):
                offered[row] = draft
        if not offered:
            return {}
        offers = [
            Offer(row, int(positions[row]) + 1, len(draft), table[row].acceptances[Drafter.LOOKUP].rate)
            for row, draft in offered.items()
        ]
        lengths = self._core.choose_drafts(step, offers, self._clock(), self._most_of_step(step, {}))
        for row in offered.keys() - lengths.keys():
            table[row].acceptances[Drafter.LOOKUP].recover()
        return {row: offered[row][:num] for row, num in lengths.items()}

    def _draft(
        self,
        flight: Flight,
        rows: Sequence[int],
        forced: Mapping[int, Sequence[int]],
        looked_up: Mapping[int, Sequence[int]],
        model: DraftModel,
    ) -> dict[int, list[int]]:
        """Let the draft model draft for the rows that gain by it, and catch up with one that will.

        Return its drafts by row; other rows have those that are `looked_up`.
        """
        offers = [offer for row in rows if (offer := self._offer(row, model)).num_tokens > 0]
        if not offers:
            return {}
        most, num_drafted = self._most_of_step(flight.step, looked_up), len(looked_up)
        began_s, cost = self._clock(), model.cost.model
        plan = self._core.plan_drafts(
            flight.step, offers, cost, began_s, most=most, num_drafted_rows=num_drafted
        )
        used = set(plan.lengths)
        if plan.catch_up is not None:
            row, num_tokens = plan.catch_up
            used.add(row)
            model.catch_up(row, num_tokens, forced.get(row, ()))
        if not used:
            self._rows.drafts.of_model.recover()
            model.cost.doubt()
        for row in {offer.row for offer in offers} - used:
            self._rows.drafts[row].acceptances[Drafter.MODEL].recover()
        found = model.draft(plan.lengths, forced) if plan.lengths else {}
        if used:
            flight.drafting_s = self._clock() - began_s
        drafts = {row: self._allowed(row, draft) for row, draft in found.items()}
        for row in (row for row, draft in drafts.items() if not draft):
            self._rows.drafts[row].acceptances[Drafter.MODEL].observe(1, 0)
            self._rows.drafts.of_model.observe(1, 0)
        drafts = {row: draft for row, draft in drafts.items() if draft}
        self._core.count_drafts(flight.step, {row: len(draft) for row, draft in drafts.items()})
        return drafts

    def _offer(self, row: int, model: DraftModel) -> ModelOffer:
        """Return what the draft model could draft for a row, which may be nothing."""
        num_context = int(self._batch.positions[row]) + 1
        return ModelOffer(
            row,
            num_context,
            model.num_computed(row),
            num_tokens=min(self._most(row), model.max_context - num_context + 1),
            num_left=self._batch.choices[row].limit - int(self._batch.num_outputs[row]),
            acceptance=self._rows.drafts[row].acceptances[Drafter.MODEL].rate,
        )

    def _most(self, row: int) -> int:
        """Return the most drafted tokens that a row has a use for."""
        return min(MOST_DRAFTS, self._batch.choices[row].limit - int(self._batch.num_outputs[row]) - 1)

    def _most_of_step(self, step: Step, drafts: Mapping[int, Sequence[int]]) -> int:
        """Return how many more drafted tokens a step may have."""
        num_left = MAX_DRAFT_ROWS - sum(map(len, drafts.values()))
        return max(0, min(num_left, self._core.limits.token_budget - step.shape.num_tokens))

    def _allowed(self, row: int, draft: list[int]) -> list[int]:
        """Return the leading tokens of a draft that the row's grammar allows."""
        if draft and self._sampling.masks.has_grammar[row]:
            return draft[: self._sampling.masks.follower(row).num_allowed(draft)]
        return draft

    def _observe(self, row: int, drafter: Drafter, num_drafted: int, num_accepted: int) -> None:
        """Take in how many tokens of a row's draft were accepted."""
        drafts = self._rows.drafts[row]
        drafts.acceptances[drafter].observe(num_drafted, num_accepted)
        counts = self._core.groups.report.drafts.setdefault(drafter, DraftCounts())
        counts.drafted += num_drafted
        counts.accepted += num_accepted
        if drafter is Drafter.MODEL:
            self._rows.drafts.of_model.observe(num_drafted, num_accepted)
            # It has not computed the last token that it drafted.
            num_context = int(self._batch.positions[row]) + 1
            drafts.num_computed = num_context + min(num_drafted - 1, num_accepted)


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
