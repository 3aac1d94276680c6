"""How long a worker may say nothing before it is taken as lost, counted in ticks of the router's own pulse.

A worker speaks at least each 0.2 s. One that is killed breaks its stream; one that is stopped, or stands
behind a half-open link, only falls silent. Time is the wrong measure of a silence: a router whose loop stood
still has not listened either, and would blame its workers for its own standstill. So silence is counted in
ticks (`ticker.py`), of which a standstill is one however long it was.

A worker whose event loop is busy is silent too, and lives. After three silent ticks the router asks it beside
the stream (`probing.py`), and again each tick. What the answer means:

    no answer                                  the process is dead or stopped, or the path is broken
    an answer; it wrote what has not arrived   the stream is broken, though the process lives
    an answer; all it wrote has arrived        its event loop is busy: the silence is excused so far

An excused silence is counted anew, for ten seconds in all: a loop that stands still for longer may never go
on.

How many unexcused ticks are too many depends on the worker, as for any failure detector whose threshold
follows the gaps that it has seen (phi-accrual, Hayashibara 2004). That one fits a distribution to them and
asks how improbable the present silence is. Ours have no shape that a few dozen samples would tell: on an idle
machine all are equal, on a crowded one the worker waits for its turn. What both have is a largest one, and
three times that is not reached by chance. Hence the bound: three times the largest gap of late, which fades
by half each ten seconds; never below 0.9 s, so that on an idle machine a loss is known within a second; never
above 5 s. A worker that was given up and comes back had a gap of that bound, and has three times as long the
next time: a machine that starves a worker for a second costs its streams one replay, not one each second.

A false alarm is safe: the worker ends what was dispatched over the stream that broke, and the next attempt
bears a higher fence. It costs computing the sequences again.
"""

from __future__ import annotations

LEAST_TICKS = 9
MOST_TICKS = 50
GAPS = 3
HALF_LIFE_TICKS = 100
UNHEARD = 2
"""Times the bound: so long may a worker that speaks take nothing of what it is sent."""
ASK_TICKS = 3
"""Seconds of silence after which a worker is probed."""
MOST_EXCUSED_TICKS = 100
"""Seconds of silence on its stream after which a worker is lost even if it answers probes."""


class FailureDetector:
    """The silence of one worker's process, over all of its streams. Ticks never run backwards."""

    def __init__(self) -> None:
        self._spoke_at = 0
        self._counted_from = 0
        """When it spoke, or was excused, last."""
        self._largest_gap = 0.0
        self._is_new = True

    def begin(self, tick: int) -> None:
        """A new stream is opened: until its first word it has the most, since handshakes come before."""
        self._spoke_at = self._counted_from = tick
        self._is_new = True

    def heard(self, tick: int) -> None:
        """The worker said something, or was given up: then this was its gap, at least."""
        gap = tick - self._counted_from
        if gap and not self._is_new:
            faded = self._largest_gap * 0.5 ** (gap / HALF_LIFE_TICKS)
            self._largest_gap = max(float(gap), faded)
        self._spoke_at = self._counted_from = tick
        self._is_new = False

    def excuse(self, tick: int) -> None:
        """Excuse the silence: the worker is alive, and all its messages have arrived."""
        self._counted_from = tick

    @property
    def bound(self) -> float:
        """Ticks."""
        if self._is_new:
            return MOST_TICKS
        return min(max(LEAST_TICKS, GAPS * self._largest_gap), MOST_TICKS)

    def length(self, tick: int) -> int:
        """Ticks since it spoke, excused ones included."""
        return tick - self._spoke_at

    def is_to_be_asked(self, tick: int) -> bool:
        """Return True if the worker should be probed."""
        return tick - self._counted_from >= ASK_TICKS

    def is_too_long(self, tick: int) -> bool:
        """Return True if it is to be taken as lost."""
        return tick - self._counted_from >= self.bound or self.length(tick) >= MOST_EXCUSED_TICKS
