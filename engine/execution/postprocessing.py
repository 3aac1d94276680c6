"""Processes a step that is over: what follows from its tokens, and what to report."""

from __future__ import annotations

import numpy as np

from engine.core.sequence import Phase, SequenceGroup
from engine.core.step import Step
from engine.core.turns.worker_core import WorkerCore
from engine.execution.device_rows import DeviceRows
from engine.execution.flight import Flight
from engine.execution.token_rows import TokenRows
from engine.sampling.drawn import Sampled

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
