"""When an idle fleet may try a request that it would refuse by what it has learnt.

What was learnt may be over: a machine that was slow is well again, and shows it only by serving something. A
fleet that refuses everything meanwhile would never find out. So a request that comes to an idle fleet is
tried even if all that was learnt speaks against it, as long as the quickest steps seen so far would do. A
trial that fails costs one broken promise; the next one like it waits for `PAUSE_S`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scheduling.request import Slo

PAUSE_S = 5.0


@dataclass(slots=True)
class Trials:
    """The last trial, until it turns out well. Times are seconds."""

    _tokens: int = 0
    _ttft_ms: float = 0.0
    _until: float = -math.inf

    def wait_s(self, prompt_tokens: int, slo: Slo, now: float) -> float:
        """Seconds until such a request may be tried; 0 if it may now.

        A trial says nothing of shorter prompts, nor of a request that leaves more time.
        """
        is_like_the_last = prompt_tokens >= self._tokens and _ttft_ms(slo) <= self._ttft_ms
        return max(0.0, self._until - now) if is_like_the_last else 0.0

    def begin(self, prompt_tokens: int, slo: Slo, now: float) -> None:
        """Try a request."""
        self._tokens, self._ttft_ms, self._until = prompt_tokens, _ttft_ms(slo), now + PAUSE_S

    def succeed(self) -> None:
        """The last trial kept its promise: the next request may be tried at once."""
        self._until = -math.inf


def _ttft_ms(slo: Slo) -> float:
    return math.inf if slo.ttft_ms is None else slo.ttft_ms
