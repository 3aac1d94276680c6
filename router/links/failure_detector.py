"""Decide when a silent worker counts as lost, in ticks of the router's own pulse.

A worker sends a message at least every 0.2 s. If it is killed, its stream breaks; if it is stopped, or behind
a half-open link, it only falls silent. Silence is not measured in time: a router whose loop stood still has
not read either, and would blame its workers for its own standstill. It is therefore counted in ticks
(`ticker.py`), and a standstill of any length is one tick.

A living worker whose event loop is busy is silent too. After three silent ticks the router probes it beside
the stream (`worker_link.py`), and again at each tick:

    no response                                  the process is dead or stopped, or the path is broken
    a response; some messages have not arrived   the stream is broken, although the process lives
    a response; all its messages have arrived    its event loop is busy: the silence is excused so far

Counting then starts again, for ten seconds in all: a loop that stands still for longer may never continue.

The number of silent ticks that is too many depends on the worker, as in any failure detector whose threshold
follows the observed gaps (phi-accrual, Hayashibara 2004). Phi-accrual fits a distribution to the gaps and
computes how improbable the current silence is. Here the gaps have no shape that a few dozen samples would
show: on an idle machine all are equal, on a crowded one the worker waits for its turn. On both, a living
worker is hardly ever silent for three times its largest gap so far. The threshold is therefore three times
the largest recent gap, which fades by half every ten seconds. It is at least 0.9 s, so that on an idle
machine a loss is noticed within a second, and at most 5 s. A worker that was given up and comes back had a
gap of that threshold, so it has three times as long the next time: a machine that starves a worker for a
second costs its streams one replay, not one each second.

A false alarm is safe: the worker ends what was dispatched over the broken stream, and the next attempt has a
higher fence. It costs computing the sequences again.
"""

from __future__ import annotations

MIN_THRESHOLD_TICKS = 9
"""0.9 s: the least silence after which a worker is lost."""
MAX_THRESHOLD_TICKS = 50
"""5 s: the most silence that is waited for, unless responses to probes excuse it."""
GAP_FACTOR = 3
HALF_LIFE_TICKS = 100
"""10 s: by then a gap counts half."""
UNTAKEN_FACTOR = 2
"""A worker that sends messages may take no command for this many times the threshold."""
PROBE_TICKS = 3
"""0.3 s: the silence after which a worker is probed."""
MAX_SILENT_TICKS = 100
"""10 s: the silence on its stream after which a worker is lost even if it responds to probes."""


class FailureDetector:
    """The silence of one worker's process, over all of its streams. Ticks never run backwards."""

    def __init__(self) -> None:
        self._last_message_at = 0
        self._counted_from = 0
        """The tick of its last message or of the last excuse."""
        self._largest_gap = 0.0
        self._is_new = True

    def start_stream(self, tick: int) -> None:
        """Start with a new stream. Until its first message it has the highest threshold, for handshakes."""
        self._last_message_at = self._counted_from = tick
        self._is_new = True

    def record_message(self, tick: int) -> None:
        """End the silence: a message arrived, or the worker is given up and this was its gap, at least."""
        gap = tick - self._counted_from
        if gap and not self._is_new:
            faded = self._largest_gap * 0.5 ** (gap / HALF_LIFE_TICKS)
            self._largest_gap = max(float(gap), faded)
        self._last_message_at = self._counted_from = tick
        self._is_new = False

    def excuse(self, tick: int) -> None:
        """Excuse the silence: the worker is alive, and all its messages have arrived."""
        self._counted_from = tick

    @property
    def threshold(self) -> float:
        """The number of silent ticks, excused ones not counted, after which the worker is lost."""
        if self._is_new:
            return MAX_THRESHOLD_TICKS
        return min(max(MIN_THRESHOLD_TICKS, GAP_FACTOR * self._largest_gap), MAX_THRESHOLD_TICKS)

    def silent_ticks(self, tick: int) -> int:
        """Return the ticks since its last message, including excused ones."""
        return tick - self._last_message_at

    def should_probe(self, tick: int) -> bool:
        """Return whether the worker should be probed."""
        return tick - self._counted_from >= PROBE_TICKS

    def is_lost(self, tick: int) -> bool:
        """Return whether the worker counts as lost."""
        return tick - self._counted_from >= self.threshold or self.silent_ticks(tick) >= MAX_SILENT_TICKS
