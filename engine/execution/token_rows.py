"""Collects the rows of tokens that one report of the step loop contains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from engine.core.sequence import Choice, SequenceGroup
from engine.sampling.drawn import Logprobs
from scheduling.columns import TokenColumns
from scheduling.request import FinishReason


class TokenRows:
    """The tokens of one report, row by row: `TokenColumns` while they grow."""

    def __init__(self) -> None:
        self._handles: list[int] = []
        self._choices: list[int] = []
        self._indexes: list[int] = []
        self._token_ids: list[int] = []
        self._finish_reasons: list[int] = []
        self._texts: list[bytes] = []
        self._logprob_rows: list[int] = []
        self._logprobs: list[float] = []
        self._top_counts: list[int] = []
        self._top_token_ids: list[int] = []
        self._top_logprobs: list[float] = []
        self._stop_rows: list[int] = []
        self._stop_places: list[int] = []

    @property
    def num_rows(self) -> int:
        return len(self._handles)

    def add_first_tokens(self, group: SequenceGroup) -> None:
        """Append the tokens that the source has drawn to their choices, which find text and ends again."""
        first, choices = group.first_tokens, {choice.index: choice for choice in group.choices}
        assert first is not None
        places = {row: place for place, row in enumerate(first.logprob_rows)}
        ends = list(accumulate(first.top_counts))
        for row, (index, token_id) in enumerate(zip(first.indexes, first.token_ids, strict=True)):
            choice = choices.get(first.choices[row])
            if choice is None:
                continue
            if row in places:
                place = places[row]
                top = slice(ends[place] - first.top_counts[place], ends[place])
                tops = first.top_token_ids[top], first.top_logprobs[top]
                self._add_logprobs(self.num_rows, first.logprobs[place], *tops)
            self.add_rows([group.handle], [choice.index], [index], [token_id], [choice.push(token_id)])
            self.add_stop(self.num_rows - 1, choice)

    def add_rows(
        self,
        handles: Iterable[int],
        choices: Iterable[int],
        indexes: Iterable[int],
        token_ids: Iterable[int],
        ends: Sequence[tuple[str, FinishReason]],
    ) -> None:
        """One row per token; all arguments have equal length, `ends` holds text and finish reason."""
        self._handles.extend(handles)
        self._choices.extend(choices)
        self._indexes.extend(indexes)
        self._token_ids.extend(token_ids)
        self._finish_reasons.extend([reason for _, reason in ends])
        self._texts.extend([text.encode() for text, _ in ends])

    def add_stop(self, row: int, choice: Choice) -> None:
        """Record which stop string ended a row's choice, if one did."""
        if choice.output.stop_place is not None:
            self._stop_rows.append(row)
            self._stop_places.append(choice.output.stop_place)

    def add_logprobs(self, logprobs: Logprobs, num_wanted: NDArray[np.int64], row_of: dict[int, int]) -> None:
        """Take the rows that are added next; `row_of` maps rows of the batch to their order among them.

        `num_wanted` is the number of alternatives by row of the batch.
        """
        for place, row in enumerate(logprobs.rows.tolist()):
            if row in row_of:
                top = slice(min(int(num_wanted[row]), logprobs.top_token_ids.shape[1]))
                tops = logprobs.top_token_ids[place, top], logprobs.top_logprobs[place, top]
                chosen = float(logprobs.chosen[place])
                self._add_logprobs(self.num_rows + row_of[row], chosen, *(part.tolist() for part in tops))

    def finish(self) -> TokenColumns:
        text = b"".join(self._texts)
        return TokenColumns(
            handles=self._handles,
            choices=self._choices,
            indexes=self._indexes,
            token_ids=self._token_ids,
            finish_reasons=self._finish_reasons,
            text_lengths=list(map(len, self._texts)) if text else [],
            text_utf8=text,
            logprob_rows=self._logprob_rows,
            logprobs=self._logprobs,
            top_counts=self._top_counts,
            top_token_ids=self._top_token_ids,
            top_logprobs=self._top_logprobs,
            stop_rows=self._stop_rows,
            stop_places=self._stop_places,
        )

    def _add_logprobs(
        self, row: int, logprob: float, top_token_ids: Sequence[int], top_logprobs: Sequence[float]
    ) -> None:
        self._logprob_rows.append(row)
        self._logprobs.append(logprob)
        self._top_counts.append(len(top_token_ids))
        self._top_token_ids.extend(top_token_ids)
        self._top_logprobs.extend(top_logprobs)
