"""Hand-overs under way: blocks go out chunk by chunk, to a worker that has room for them.

What is sent early hides behind the chunks that are still computed; a hand-over is complete once its last
block is there, was checked and was acknowledged, but never before its receiver had blocks to take it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sim.clock import Clock
from sim.sequence import SimSequence

Key = tuple[int, int]
"""Router and handle."""
Tell = Callable[[SimSequence], None]


@dataclass(frozen=True, slots=True)
class _End:
    """One worker's side, ready since `at`; `tell` is called with its sequence when all is done."""

    sequence: SimSequence
    at: float
    tell: Tell


class Handoffs:
    """Joins both ends; each comes when it is ready, in either order."""

    def __init__(self, clock: Clock, fixed_s: float, token_s: float) -> None:
        self._clock = clock
        self._fixed_s = fixed_s
        self._token_s = token_s
        self._sources: dict[Key, _End] = {}
        self._targets: dict[Key, _End] = {}

    def receive(self, target: SimSequence, accept: Tell) -> None:
        """A receiver has its blocks."""
        key = target.router, target.handle
        self._targets[key] = _End(target, self._clock.now, accept)
        self._join(key)

    def send(self, source: SimSequence, let_go: Tell) -> None:
        """A source has computed all, and told the first token."""
        key = source.router, source.handle
        self._sources[key] = _End(source, self._clock.now, let_go)
        self._join(key)

    def forget(self, sequence: SimSequence) -> None:
        """An end is over; the other will be told by its router."""
        key = sequence.router, sequence.handle
        for ends in (self._sources, self._targets):
            end = ends.get(key)
            if end is not None and end.sequence is sequence:
                del ends[key]

    def _join(self, key: Key) -> None:
        source, target = self._sources.get(key), self._targets.get(key)
        if source is None or target is None:
            return
        del self._sources[key], self._targets[key]
        sent_at = max(source.sequence.sent_at, self._clock.now)
        if target.at > source.at:  # nothing could be sent early
            sent_at = max(sent_at, target.at + source.sequence.prompt_tokens * self._token_s)
        self._clock.at(sent_at + self._fixed_s, self._complete, source, target)

    def _complete(self, source: _End, target: _End) -> None:
        if not source.sequence.is_ended and not target.sequence.is_ended:
            target.sequence.first_at = target.sequence.last_at = source.at
            target.tell(target.sequence)
        source.tell(source.sequence)
