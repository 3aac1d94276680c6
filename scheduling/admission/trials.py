"""When an idle fleet may try a request that it would refuse by what it has learnt.

Learnt costs may no longer hold: a machine that has recovered shows it only by serving a request. A fleet that
refuses everything would never find out. So an idle fleet tries a request even if the learnt costs speak
against it, as long as the quickest steps seen so far would keep its SLO. A trial that fails costs one broken
promise; the next similar request waits for `PAUSE_S`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scheduling.request import Slo

PAUSE_S = 5.0


@dataclass(slots=True)
class Trials:
    """The last trial, until it succeeds. Times are in seconds."""

    _tokens: int = 0
    _ttft_ms: float = 0.0
    _until: float = -math.inf

    def wait_s(self, prompt_tokens: int, slo: Slo, now: float) -> float:
        """Return the seconds until such a request may be tried; 0 if it may now.

        A trial says nothing about shorter prompts, or about requests with a longer TTFT limit.
        """
        is_like_the_last = prompt_tokens >= self._tokens and _ttft_ms(slo) <= self._ttft_ms
        return max(0.0, self._until - now) if is_like_the_last else 0.0

    def begin(self, prompt_tokens: int, slo: Slo, now: float) -> None:
        """Remember a request as the last trial."""
        self._tokens, self._ttft_ms, self._until = prompt_tokens, _ttft_ms(slo), now + PAUSE_S

    def succeed(self) -> None:
        """Let the next request be tried at once: the last trial kept its promise."""
        self._until = -math.inf


def _ttft_ms(slo: Slo) -> float:
    return math.inf if slo.ttft_ms is None else slo.ttft_ms
