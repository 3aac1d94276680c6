"""The tokens of a step, and their log-probabilities, on their way to the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.device import Download


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the rows that want them; meaningless where a row is broken."""

    rows: NDArray[np.int64]
    """Rows of the table [r], ascending."""
    chosen: NDArray[np.float64]
    """[r]"""
    top_token_ids: NDArray[np.int64]
    """[r, most alternatives of any row], most likely first; a row uses its own leading part"""
    top_logprobs: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row."""

    token_ids: NDArray[np.int64]
    """[rows]; meaningless where a row is broken"""
    is_broken: NDArray[np.bool_]
    """[rows]; the row's largest logit is NaN or infinite, so there is nothing to draw from"""
    logprobs: Logprobs | None


class Drawn:
    """One token per row, on its way to the host; the next step can use it on the device before.

    The values are those at the point of the current stream where this is made.
    """

    def __init__(
        self, token_ids: Tensor, is_broken: Tensor, logprobs: Callable[[], Logprobs | None] | None = None
    ) -> None:
        self.token_ids = token_ids
        """[rows] int64 on the device; in the vocabulary, but meaningless where a row is broken"""
        self._token_ids, self._is_broken = Download(token_ids), Download(is_broken)
        self._logprobs = logprobs

    def wait(self) -> Sampled:
        """Wait until the tokens are on the host, and return them."""
        logprobs = None if self._logprobs is None else self._logprobs()
        return Sampled(self._token_ids.wait(), self._is_broken.wait(), logprobs)
