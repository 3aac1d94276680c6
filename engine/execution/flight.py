"""A step from its launch until its tokens are processed.

A launched step runs by itself on a GPU, so the next one can be launched behind it before the host knows what
it drew. What does not depend on its tokens (positions, blocks, rows that join, outputs that are full) is done
at its launch; what does (text, ends, due times, the prefix cache, the report) once it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engine.core.step import Step
from engine.device.copy_stream import mark_steps
from engine.sampling.drawn import Drawn
from engine.sampling.prompt_logprobs import TakenRows
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
