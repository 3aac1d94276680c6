"""One step, from its plan until its tokens are known, without its tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.core.batch import Rows
from engine.core.sequence import Choice, Phase, SequenceGroup
from scheduling.cost_model import StepShape
from scheduling.value import value

MAX_PROMPT_ROWS = 256
"""Prompt positions of one step whose logits are computed. 67 MB for a vocabulary of 128k in 16 bits."""


@value
class ChunkWork:
    """The next tokens of one prompt."""

    group: SequenceGroup
    begin: int
    """Where in the context the chunk begins."""
    end: int
    wants_logits: bool
    """A first token is drawn from the logits of its last token."""
    prompt_rows: range
    """Positions in the context whose logits are needed too."""

    @property
    def is_void(self) -> bool:
        """True if the prompt has ended since the chunk was launched."""
        return self.group.phase is Phase.ENDED


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Step:
    """The work of one step. Its rows are as at its launch; their choices may have moved or ended since."""

    num_decodes: int
    chunks: list[ChunkWork]
    shape: StepShape
    rows: Rows
    """The rows that get a token: its decodes, and from its launch on the choices that join with it."""
    num_recomputed: int = 0
    prefilled: list[SequenceGroup] = field(default_factory=list)
    """Groups whose prompt it completes, and whose first tokens it draws."""
    joining: list[SequenceGroup] = field(default_factory=list)
    """The same, and those that had run before a preemption."""
    choices: list[Choice] = field(default_factory=list)
    """The choice of each row that got a token."""
    positions: NDArray[np.int64] = field(default_factory=_no_rows)
    """The position of each token whose KV it writes for these rows."""
    last: list[Choice] = field(default_factory=list)
    """Choices that have left the batch with it, since they got the last token they may have."""
    held: list[int] = field(default_factory=list)
    """Blocks that are not needed any more and that it may still write to: given back when it is over."""

    def row_of(self, place: int) -> int:
        """Return the row that one of its choices had when the tokens were drawn."""
        return int(self.rows.start) + place if isinstance(self.rows, slice) else int(self.rows[place])

    @property
    def groups(self) -> set[SequenceGroup]:
        """All groups that it computes for."""
        return {*(chunk.group for chunk in self.chunks), *(choice.group for choice in self.choices)}


def within_rows(
    chunks: Iterable[tuple[SequenceGroup, int]], max_rows: int = MAX_PROMPT_ROWS
) -> list[tuple[SequenceGroup, int]]:
    """Return (prompt, number of next tokens) cut so that at most `max_rows` positions need logits.

    Chunks after the first may be left out.
    """
    kept = []
    for group, num_tokens in chunks:
        begin = group.num_computed_tokens
        rows = group.prompt_rows(begin, begin + num_tokens)
        length = num_tokens if len(rows) <= max_rows else rows[max_rows] - begin
        max_rows -= min(len(rows), max_rows)
        if length > 0:
            kept.append((group, length))
    return kept
