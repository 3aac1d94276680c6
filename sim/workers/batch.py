"""The decodes of one simulated worker: all of them take a token in every decode step.

So nothing is done per token. A sequence knows on joining the number of the step it ends with; contexts and
due times are linear in the steps done; and when a token came is the step's time, kept once for all.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from scheduling.lateness import HOPELESS_GAPS, least_slack
from scheduling.step import NO_LIMIT_S, DecodeLoad
from sim.workers.sequence import Sequence

Times = NDArray[np.float64]


class Batch:
    """Rows of running sequences; `steps` counts the decode steps done."""

    def __init__(self, block_size: int) -> None:
        self.steps = 0
        self.context_tokens = 0
        """Tokens that the next decode step attends to."""
        self.rows: list[Sequence] = []
        self._block_size = block_size
        self._ends: list[tuple[int, int, Sequence]] = []
        self._joined = 0
        # Row i's next token is due at alpha + (steps + 1) * tpot: hopeless tokens only ever raise alpha.
        self._alpha = np.full(64, np.inf)
        self._tpot = np.zeros(64)
        self._itl = np.full(64, np.inf)
        self._since = np.zeros(64)
        self._paces: Counter[float] = Counter()
        self._least_alpha: dict[float, float] = {}
        """By pace, what no row of it is below."""
        self._gap_limits: Counter[float] = Counter()
        self._num_itl = 0
        # Rows by (context - steps) % block_size, on which it depends when they begin a block.
        self._phases = [0] * block_size
        self._times = np.zeros(1024)
        self._sizes = np.zeros(1024, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.rows)

    # Rows

    def join(self, sequence: Sequence, due_from: float, now: float) -> None:
        """Its newest token is known, and is to be computed by the next decode step; the next is due a TPOT
        after `due_from`.
        """
        row = len(self.rows)
        if row == len(self._alpha):
            self._widen()
        sequence.row = row
        sequence.joined_at = self.steps
        sequence.ends_at = self.steps + sequence.output_tokens - sequence.generated
        self.rows.append(sequence)
        self._joined += 1
        heapq.heappush(self._ends, (sequence.ends_at, self._joined, sequence))
        self.context_tokens += sequence.context_tokens
        self._phases[(sequence.context_tokens - self.steps) % self._block_size] += 1
        self._promise(row, sequence, due_from, now)

    def _promise(self, row: int, sequence: Sequence, due_from: float, now: float) -> None:
        tpot_s, itl_s = sequence.tpot_s, sequence.itl_s
        self._alpha[row], self._tpot[row] = np.inf, 0.0
        self._since[row], self._itl[row] = now, itl_s
        if tpot_s is not None:
            self._alpha[row], self._tpot[row] = due_from - self.steps * tpot_s, tpot_s
            self._paces[tpot_s] += 1
            least = self._least_alpha.get(tpot_s, np.inf)
            self._least_alpha[tpot_s] = min(least, float(self._alpha[row]))
        self._num_itl += itl_s < NO_LIMIT_S
        self._gap_limits[sequence.gap_limit_s] += 1

    def leave(self, sequence: Sequence) -> None:
        """Its tokens so far are counted, and their times kept with it."""
        row, last = sequence.row, len(self.rows) - 1
        done = self.steps - sequence.joined_at
        if done:
            times = self._times[sequence.joined_at + 1 : self.steps + 1]
            sequence.add_times(times)
        sequence.generated += done
        self.context_tokens -= sequence.context_tokens
        self._phases[(sequence.context_tokens - self.steps) % self._block_size] -= 1
        if sequence.tpot_s is not None:
            _take_one(self._paces, sequence.tpot_s)
            if sequence.tpot_s not in self._paces:
                del self._least_alpha[sequence.tpot_s]
        _take_one(self._gap_limits, sequence.gap_limit_s)
        self._num_itl -= sequence.itl_s < NO_LIMIT_S
        moved = self.rows[last]
        self.rows[row] = moved
        moved.row = row
        for column in (self._alpha, self._tpot, self._itl, self._since):
            column[row] = column[last]
        self.rows.pop()
        sequence.row = -1

    def generated_by(self, sequence: Sequence) -> int:
        """Tokens of a running one."""
        return sequence.generated + self.steps - sequence.joined_at

    def steps_to_an_end(self) -> int:
        """Decode steps until a running sequence ends; at least one runs."""
        ends = self._ends
        while ends[0][2].row < 0 or ends[0][2].ends_at != ends[0][0]:
            heapq.heappop(ends)
        return ends[0][0] - self.steps

    def take_ended(self) -> list[Sequence]:
        """Those whose last token the newest step was; they have left."""
        ended = []
        ends = self._ends
        while ends and ends[0][0] <= self.steps:
            end, _, sequence = heapq.heappop(ends)
            if sequence.row >= 0 and sequence.ends_at == end:
                self.leave(sequence)
                ended.append(sequence)
        return ended

    # Steps

    def advance(self, times: Seq[float] | Times) -> None:
        """Decode steps have been done, and ended at these times."""
        first, count = self.steps + 1, len(times)
        while first + count > len(self._times):
            self._times = np.concatenate((self._times, np.zeros(len(self._times))))
            self._sizes = np.concatenate((self._sizes, np.zeros(len(self._sizes), dtype=np.int32)))
        self._times[first : first + count] = times
        self._sizes[first : first + count] = len(self.rows)
        self.context_tokens += count * len(self.rows)
        self.steps += count
        self._forgive(self._times[first : first + count], first)

    def _forgive(self, times: Times, first: int) -> None:
        """A hopelessly late token starts its row's line anew, as `scheduling.lateness.next_due` does.

        Step d's tokens came at times[d - first], so such a row's alpha becomes time - d * tpot. Hardly ever
        is one so late: only then are the rows looked at, and the steps one by one.
        """
        alpha, tpot = self._alpha[: len(self.rows)], self._tpot[: len(self.rows)]
        last = float(times[-1])
        for tpot_s in self._paces:
            hope_s = HOPELESS_GAPS * tpot_s
            if self._least_alpha[tpot_s] >= last - first * tpot_s - hope_s:
                continue
            starts = times - np.arange(first, first + len(times)) * tpot_s
            of_pace = tpot == tpot_s
            hopeless = of_pace & (alpha < starts.max() - hope_s)
            if not hopeless.any():
                self._least_alpha[tpot_s] = float(alpha[of_pace].min())
                continue
            own = alpha[hopeless]
            for start in starts.tolist():
                own[own < start - hope_s] = start
            alpha[hopeless] = own
            self._least_alpha[tpot_s] = float(alpha[of_pace].min())

    def growth(self, count: int) -> int:
        """Blocks that the contexts will begin during that many decode steps."""
        size, phases = self._block_size, self._phases
        rounds, rest = divmod(count, size)
        grown, phase = rounds * len(self.rows), -self.steps % size
        for _ in range(rest):
            grown += phases[phase]
            phase = phase - 1 if phase else size - 1
        return grown

    def load(self, now: float) -> DecodeLoad:
        """The rows as aggregates, between two steps."""
        count = len(self.rows)
        if count == 0:
            return _NOTHING
        due = self._alpha[:count] + (self.steps + 1) * self._tpot[:count]
        if self._num_itl:
            last = np.maximum(self._since[:count], self._times[self.steps])
            due = np.minimum(due, last + self._itl[:count])
        slack_s = least_slack(due, HOPELESS_GAPS * self._tpot[:count], now)
        return DecodeLoad(count, self.context_tokens, slack_s, min(self._gap_limits))

    def slack_of(self, sequence: Sequence, now: float) -> float:
        """Until a running sequence's next token is due; 0 where it is late."""
        due = self._alpha[sequence.row] + (self.steps + 1) * self._tpot[sequence.row]
        last = max(self._since[sequence.row], self._times[self.steps])
        return max(0.0, float(min(due, last + self._itl[sequence.row])) - now)

    def token_times(self) -> tuple[Times, NDArray[np.int32]]:
        """When each decode step ended, and how many sequences were in it."""
        return self._times[1 : self.steps + 1], self._sizes[1 : self.steps + 1]

    def _widen(self) -> None:
        more = len(self._alpha)
        self._alpha = np.concatenate((self._alpha, np.full(more, np.inf)))
        self._tpot = np.concatenate((self._tpot, np.zeros(more)))
        self._itl = np.concatenate((self._itl, np.full(more, np.inf)))
        self._since = np.concatenate((self._since, np.zeros(more)))


def _take_one(counts: Counter[float], key: float) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


_NOTHING = DecodeLoad()
