"""Drafts from a sequence's own tokens: what followed the newest ones when they came before.

Saxena, "Prompt Lookup Decoding", 2023, with runs of three tokens and the latest place where they stand.
Answers that quote their prompt (summaries, edits of code, extraction) repeat long parts of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUN = 3
"""Tokens that have to be the same before a draft. Fewer give many drafts that are not accepted."""
_BITS = 21
"""Bits of a token in a run's number. No vocabulary is larger than 2 million tokens."""
_RUN_MASK = (1 << RUN * _BITS) - 1


class PromptLookup:
    """The tokens of one sequence. A draft looks at 8 bytes for each of them."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._num = 0
        self._tokens: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._runs: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        """The number of the run that ends with each token."""
        self._newest = 0
        """The number of the run that ends with the newest token."""
        self.extend(token_ids)

    def __len__(self) -> int:
        """Return how many tokens are known."""
        return self._num

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append the sequence's next tokens."""
        begin, end = self._num, self._num + len(token_ids)
        if end > len(self._tokens):
            self._tokens, self._runs = (_longer(column, 2 * end) for column in (self._tokens, self._runs))
        self._tokens[begin:end] = token_ids
        self._num = end
        if end - begin <= RUN:  # one by one is faster
            for place, token_id in enumerate(token_ids, begin):
                self._newest = (self._newest << _BITS | token_id) & _RUN_MASK
                self._runs[place] = self._newest
            return
        runs = np.zeros(end - begin, dtype=np.int64)
        for back in range(RUN):
            first = max(begin, back)
            runs[first - begin :] |= self._tokens[first - back : end - back] << (_BITS * back)
        self._runs[begin:end] = runs
        self._newest = int(runs[-1])

    def draft(self, most: int) -> list[int]:
        """Return at most `most` tokens that may come next; none where the newest run is new.

        A draft that reaches the end of the sequence goes on with its own tokens, as a loop does.
        """
        if self._num <= RUN or most < 1:
            return []
        (ends,) = (self._runs[RUN - 1 : self._num - 1] == self._newest).nonzero()
        if not ends.size:
            return []
        begin = int(ends[-1]) + RUN
        seen: list[int] = self._tokens[begin : begin + most].tolist()[: self._num - begin]
        return [seen[place % len(seen)] for place in range(most)] if begin + most > self._num else seen


def _longer(column: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    longer = np.empty(length, dtype=np.int64)
    longer[: len(column)] = column
    return longer
