"""A step from its launch until its tokens are processed.

A launched step runs by itself on a GPU, so the next one can be launched behind it before the host knows what
it drew. What does not depend on its tokens (positions, blocks, rows that join, outputs that are full) is done
at its launch; what does (text, ends, due times, the prefix cache, the report) once it is over: the
`Postprocessor` processes its tokens, and keeps those that are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.batch import Step
from engine.core.sequence import Choice, Phase, SequenceGroup
from engine.core.turns.worker_core import WorkerCore
from engine.device import mark_steps
from engine.execution.device_rows import DeviceRows
from engine.sampling.prompt_logprobs import TakenRows
from engine.sampling.sampler import Drawn, Logprobs, Sampled
from scheduling.columns import TokenColumns
from scheduling.speculation import Drafter


class StepMark:
    """Times one step on `device`; made when the step may begin.

    On a GPU it begins when the step before is over, so the host's part counts only where the device waited
    for it. On a CPU, whose launches return when they are done, all of the host's time counts, with planning.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin = self._end = mark_steps(device)

    def end(self) -> None:
        """All of the step is launched."""
        self._end = mark_steps(self._device)

    def wait(self) -> None:
        """Return when the step is over; raise the error that the device reports."""
        self._end.synchronize()

    def seconds(self) -> float:
        """Return how long the step took, once it is over."""
        end = mark_steps(self._device) if self._device.type == "cpu" else self._end
        return self._begin.elapsed_time(end) / 1000


@dataclass(slots=True, eq=False)
class Flight:
    """One launched step: what the device computes, beside what `step` says of it."""

    step: Step
    mark: StepMark
    over_at_s: float
    """When it is expected to be over, on the loop's clock."""
    prompt_rows: list[TakenRows] = field(default_factory=list)
    """Log-probabilities of prompt tokens that it computes."""
    drawn: Drawn | None = None
    """None where no row got a token."""
    forced: dict[int, list[int]] = field(default_factory=dict)
    """Tokens that come before the drawn one, by the place of a choice among the step's: forced by its
    grammar, then drafted and accepted."""
    drafts: dict[int, list[int]] = field(default_factory=dict)
    """Tokens that the step verifies behind those that are forced, by the place of a choice, ascending."""
    drafters: dict[int, Drafter] = field(default_factory=dict)
    """The drafter of the tokens of each choice in `drafts`."""
    drafting_s: float = 0.0
    """How long a draft model computed before the step."""
    idle_s: float = 0.0
    """How long it lay between two stages of a pipeline."""
    num_restricted: int = 0
    """How many of its first rows' grammars were asked for their next tokens while it was computed."""
    stuck: dict[int, str] = field(default_factory=dict)
    """Why no token may follow by its grammar, by the place of a choice among the step's."""

    def keep_drafts(self, running: Sequence[int]) -> NDArray[np.int64]:
        """Forget the drafts of choices that have ended since the step was sent.

        `running` are the places that the others had, in the order of their new ones. Return which of the
        drafted tokens are left.
        """
        owners = np.repeat(list(self.drafts), [len(draft) for draft in self.drafts.values()])
        kept = {new: old for new, old in enumerate(running) if old in self.drafts}
        self.drafts = {new: self.drafts[old] for new, old in kept.items()}
        self.drafters = {new: self.drafters[old] for new, old in kept.items()}
        return np.flatnonzero(np.isin(owners, list(kept.values())))


class TokenRows:
    """The tokens of one report, row by row: `TokenColumns` while they grow."""

    def __init__(self) -> None:
        self._handles: list[int] = []
        self._choices: list[int] = []
        self._indexes: list[int] = []
        self._token_ids: list[int] = []
        self._finish_reasons: list[int] = []
        self._texts: list[bytes] = []
        self._logprob_rows: list[int] = []
        self._logprobs: list[float] = []
        self._top_counts: list[int] = []
        self._top_token_ids: list[int] = []
        self._top_logprobs: list[float] = []
        self._stop_rows: list[int] = []
        self._stop_places: list[int] = []

    @property
    def num_rows(self) -> int:
        return len(self._handles)

    def add_first_tokens(self, group: SequenceGroup) -> None:
        """Append the tokens that the source has drawn to their choices, which find text and ends again."""
        first, choices = group.first_tokens, {choice.index: choice for choice in group.choices}
        assert first is not None
        places = {row: place for place, row in enumerate(first.logprob_rows)}
        ends = list(accumulate(first.top_counts))
        for row, (index, token_id) in enumerate(zip(first.choices, first.token_ids, strict=True)):
            if index not in choices:
                continue
            if row in places:
                place = places[row]
                top = slice(ends[place] - first.top_counts[place], ends[place])
                tops = first.top_token_ids[top], first.top_logprobs[top]
                self._add_logprobs(self.num_rows, first.logprobs[place], *tops)
            self.add([choices[index]], [token_id])

    def add(self, choices: Sequence[Choice], token_ids: Sequence[int]) -> None:
        """Append a token to each choice, with a row for each."""
        for choice, token_id in zip(choices, token_ids, strict=True):
            self._handles.append(choice.group.handle)
            self._choices.append(choice.index)
            self._indexes.append(choice.num_outputs)
            text, reason = choice.push(token_id)
            self._texts.append(text.encode())
            self._finish_reasons.append(reason)
            if choice.is_finished and choice.output.stop_place is not None:
                self._stop_rows.append(self.num_rows - 1)
                self._stop_places.append(choice.output.stop_place)
        self._token_ids.extend(token_ids)

    def add_logprobs(self, logprobs: Logprobs, choices: Mapping[int, Choice]) -> None:
        """Take log-probabilities of the rows that are added next: those of `choices`, by row of the batch."""
        order = {row: place for place, row in enumerate(choices)}
        for place, row in enumerate(logprobs.rows.tolist()):
            if row in choices:
                num_top = choices[row].group.spec.sampling.logprobs or 0
                tops = logprobs.top_token_ids[place, :num_top], logprobs.top_logprobs[place, :num_top]
                chosen = float(logprobs.chosen[place])
                self._add_logprobs(self.num_rows + order[row], chosen, *(part.tolist() for part in tops))

    def finish(self) -> TokenColumns:
        text = b"".join(self._texts)
        return TokenColumns(
            handles=self._handles,
            choices=self._choices,
            indexes=self._indexes,
            token_ids=self._token_ids,
            finish_reasons=self._finish_reasons,
            text_lengths=list(map(len, self._texts)) if text else [],
            text_utf8=text,
            logprob_rows=self._logprob_rows,
            logprobs=self._logprobs,
            top_counts=self._top_counts,
            top_token_ids=self._top_token_ids,
            top_logprobs=self._top_logprobs,
            stop_rows=self._stop_rows,
            stop_places=self._stop_places,
        )

    def _add_logprobs(
        self, row: int, logprob: float, top_token_ids: Sequence[int], top_logprobs: Sequence[float]
    ) -> None:
        self._logprob_rows.append(row)
        self._logprobs.append(logprob)
        self._top_counts.append(len(top_token_ids))
        self._top_token_ids.extend(top_token_ids)
        self._top_logprobs.extend(top_logprobs)


_BROKEN_LOGITS = "the model's logits are not finite: its weights or its KV are damaged"


class Postprocessor:
    """Works while a later step may be in flight, with rows of choices that turn out to have ended."""

    def __init__(self, core: WorkerCore, rows: DeviceRows, block_size: int) -> None:
        self._core = core
        self._rows = rows
        self._block_size = block_size

    def process(
        self,
        flight: Flight,
        sampled: Sampled | None,
        tokens: TokenRows,
        now_s: float,
        *,
        is_latest: bool,
        is_overtaken: bool,
    ) -> list[SequenceGroup]:
        """Take in a step that is over, and put its tokens into `tokens`.

        No row has changed since the launch of the latest step. A step is overtaken where the one in flight
        has a further token of its rows. Return the groups whose context is complete with this step, and whose
        first tokens came from elsewhere.
        """
        step = flight.step
        self._core.mark_written(step)
        self._report_prompts(flight)
        self._core.count_tokens(step, now_s, is_latest=is_latest, is_overtaken=is_overtaken)
        if sampled is None:
            return self._core.finish(step, (), ())
        if not is_overtaken:
            rows = np.array([choice.row for choice in step.choices])
            self._rows.land(rows[rows >= 0], sampled.token_ids[rows >= 0])
        wanted = self._without_broken(flight, sampled, tokens)
        fills = (step.positions + 1) % self._block_size == 0
        fills[step.num_decodes :] = True
        fills[list(flight.drafts)] = True  # what was accepted may have left the block
        filled = [step.choices[place] for place in wanted if fills[place] and _is_known(step, place)]
        finished = [step.choices[place] for place in wanted if step.choices[place].is_finished]
        return self._core.finish(step, filled, finished)

    def _report_prompts(self, flight: Flight) -> None:
        for taken in flight.prompt_rows:
            if taken.group.phase is Phase.ENDED:
                continue
            found = taken.wait()
            if found is None:
                self._core.fail([taken.group], _BROKEN_LOGITS, is_wrong=True)
            else:
                self._core.groups.report.prompt_logprobs.append(found)

    def _without_broken(self, flight: Flight, sampled: Sampled, tokens: TokenRows) -> list[int]:
        """Append and report a token of each choice that goes on, and fail broken ones.

        Return the places of the choices that got their token.
        """
        choices = flight.step.choices
        wanted = [place for place, choice in enumerate(choices) if not choice.is_over]
        broken: dict[int, SequenceGroup] = {}
        if sampled.is_broken.any():
            groups = [choices[place].group for place in wanted if sampled.is_broken[place]]
            broken = {group.handle: group for group in groups}
            wanted = [place for place in wanted if choices[place].group.handle not in broken]
        for place in wanted:
            for token_id in flight.forced.get(place, ()):
                if not choices[place].is_finished:
                    tokens.add([choices[place]], [token_id])
        drawn = [place for place in wanted if not choices[place].is_finished]
        going = {flight.step.row_of(place): choices[place] for place in drawn}
        if sampled.logprobs is not None:
            tokens.add_logprobs(sampled.logprobs, going)
        tokens.add(list(going.values()), sampled.token_ids[drawn].tolist())
        for place, why in flight.stuck.items():
            self._core.fail_output(choices[place].group, f"its output cannot go on by its format: {why}")
        self._core.fail(broken.values(), _BROKEN_LOGITS, is_wrong=True)
        return wanted


def _is_known(step: Step, place: int) -> bool:
    """Return False if a forced token ended the choice before the last token that the step wrote for it."""
    choice = step.choices[place]
    num_tokens = len(choice.group.spec.prompt_token_ids) + choice.num_outputs
    return num_tokens > int(step.positions[place])
