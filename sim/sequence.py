"""One request on one simulated worker: its tokens, choices and block names, beside what the core knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.core.batch import Batch
from engine.core.sequence import Choice, SequenceGroup
from scheduling.request import FinishReason, SequenceSpec


@dataclass(slots=True, eq=False)
class SimSequence:
    """How long the answer will be, what of the prompt is shared, and when its tokens came."""

    router: int
    handle: int
    """Its router's; `spec` has the worker's."""
    spec: SequenceSpec
    output_tokens: int = 0
    block_names: tuple[bytes, ...] = ()
    """The names of the leading blocks of its prompt that others may have computed."""
    generated: int = field(init=False)
    """Tokens of the answer, as of when it joined or left the batch last."""
    reported: int = field(init=False)
    is_receiving: bool = False
    """Its blocks are there, and its KV has not come yet."""
    is_ended: bool = False
    sent_at: float = 0.0
    """When what is computed of it will have been sent."""
    joined_at: int = 0
    """The number of the worker's decode steps before it joined."""
    first_at: float | None = None
    last_at: float = 0.0
    gaps: list[NDArray[np.float64]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generated = self.reported = len(self.spec.output_token_ids)

    @property
    def prompt_tokens(self) -> int:
        return len(self.spec.prompt_token_ids)

    @property
    def is_over(self) -> bool:
        """True if its newest token is its last."""
        return self.generated >= self.output_tokens

    @property
    def finish_reason(self) -> FinishReason:
        """Why its newest token is its last, if it is."""
        if not self.is_over:
            return FinishReason.NONE
        is_cut = self.generated >= self.spec.stop.max_tokens
        return FinishReason.LENGTH if is_cut else FinishReason.EOS

    def add_token(self, now: float) -> None:
        """Record the time of a token that a prompt's last chunk brought."""
        if self.first_at is None:
            self.first_at = now
        else:
            self.gaps.append(np.array([now - self.last_at]))
        self.last_at = now

    def add_times(self, times: NDArray[np.float64]) -> None:
        """Record when decode steps gave it tokens."""
        gaps = np.empty(len(times))
        gaps[0] = times[0] - self.last_at
        np.subtract(times[1:], times[:-1], out=gaps[1:])
        self.gaps.append(gaps)
        self.last_at = float(times[-1])


class CountedChoice(Choice):
    """A choice whose tokens are counted, never named. It ends when its trace says so."""

    __slots__ = ("_batch", "_sequence")

    def __init__(self, group: SequenceGroup, choice: int, sequence: SimSequence, batch: Batch) -> None:
        super().__init__(group, choice, group.new_output(None))
        self._sequence = sequence
        self._batch = batch
        self.limit = sequence.output_tokens

    @property
    def num_outputs(self) -> int:
        return self._sequence.generated if self.row < 0 else int(self._batch.num_outputs[self.row])


class SharedNames:
    """Implements `engine.core.memory.block_tables.BlockNames`; all blocks of outputs are nameless."""

    def __init__(self, sequences: Mapping[int, SimSequence]) -> None:
        self._sequences = sequences

    def of_full_blocks(self, spec: SequenceSpec, output_token_ids: Sequence[int]) -> Sequence[bytes]:
        return self._sequences[spec.handle].block_names

    def of_received(self, group: SequenceGroup) -> Sequence[bytes]:
        return group.block_hashes

    def of_last(self, group: SequenceGroup, num_blocks: int) -> bytes:
        return group.block_hashes[num_blocks - 1] if 0 < num_blocks <= len(group.block_hashes) else b""

    def of_next(self, choice: Choice) -> bytes | None:
        index, names = choice.num_registered_blocks, choice.group.block_hashes
        return names[index] if index < len(names) else None
