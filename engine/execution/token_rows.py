"""Collects the rows of tokens that one report of the step loop contains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.sequence import Choice
from engine.sampling.sampler import Logprobs
from scheduling.columns import TokenColumns
from scheduling.request import FinishReason


@dataclass(frozen=True, slots=True)
class FirstToken:
    """One row of the source's first tokens."""

    choice: int
    index: int
    token_id: int
    logprob: float | None
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


def first_token_rows(columns: TokenColumns) -> Iterator[FirstToken]:
    """Yield the rows of `columns`; their reader finds text and finish reasons again."""
    logprob_place = {row: place for place, row in enumerate(columns.logprob_rows)}
    top_begin = 0
    for row, token_id in enumerate(columns.token_ids):
        place = logprob_place.get(row)
        num_top = 0 if place is None else columns.top_counts[place]
        top = slice(top_begin, top_begin + num_top)
        top_begin += num_top
        yield FirstToken(
            choice=columns.choices[row],
            index=columns.indexes[row],
            token_id=token_id,
            logprob=None if place is None else columns.logprobs[place],
            top_token_ids=tuple(columns.top_token_ids[top]),
            top_logprobs=tuple(columns.top_logprobs[top]),
        )


class _Columns:
    """`TokenColumns` while they grow."""

    def __init__(self) -> None:
        self.handles: list[int] = []
        self.choices: list[int] = []
        self.indexes: list[int] = []
        self.token_ids: list[int] = []
        self.finish_reasons: list[int] = []
        self.text_lengths: list[int] = []
        self.texts: list[bytes] = []
        self.logprob_rows: list[int] = []
        self.logprobs: list[float] = []
        self.top_counts: list[int] = []
        self.top_token_ids: list[int] = []
        self.top_logprobs: list[float] = []
        self.stop_rows: list[int] = []
        self.stop_places: list[int] = []

    def finish(self) -> TokenColumns:
        text = b"".join(self.texts)
        return TokenColumns(
            handles=self.handles,
            choices=self.choices,
            indexes=self.indexes,
            token_ids=self.token_ids,
            finish_reasons=self.finish_reasons,
            text_lengths=self.text_lengths if text else [],
            text_utf8=text,
            logprob_rows=self.logprob_rows,
            logprobs=self.logprobs,
            top_counts=self.top_counts,
            top_token_ids=self.top_token_ids,
            top_logprobs=self.top_logprobs,
            stop_rows=self.stop_rows,
            stop_places=self.stop_places,
        )


class TokenRows:
    """The tokens of one report, row by row."""

    def __init__(self) -> None:
        self._growing = _Columns()

    @property
    def num_rows(self) -> int:
        return len(self._growing.handles)

    def add_first_token(self, handle: int, first: FirstToken, text: str, reason: FinishReason) -> None:
        columns = self._growing
        if first.logprob is not None:
            columns.logprob_rows.append(len(columns.handles))
            columns.logprobs.append(first.logprob)
            columns.top_counts.append(len(first.top_token_ids))
            columns.top_token_ids.extend(first.top_token_ids)
            columns.top_logprobs.extend(first.top_logprobs)
        self.add_rows([handle], [first.choice], [first.index], [first.token_id], [(text, reason)])

    def add_rows(
        self,
        handles: Iterable[int],
        choices: Iterable[int],
        indexes: Iterable[int],
        token_ids: Iterable[int],
        ends: Sequence[tuple[str, FinishReason]],
    ) -> None:
        """One row per token; all arguments have equal length, `ends` holds text and finish reason."""
        columns = self._growing
        columns.handles.extend(handles)
        columns.choices.extend(choices)
        columns.indexes.extend(indexes)
        columns.token_ids.extend(token_ids)
        columns.finish_reasons.extend([reason for _, reason in ends])
        encoded = [text.encode() for text, _ in ends]
        columns.texts.extend(encoded)
        columns.text_lengths.extend(map(len, encoded))

    def add_stop(self, row: int, choice: Choice) -> None:
        """Record which stop string ended a row's choice, if one did."""
        if choice.output.stop_place is not None:
            self._growing.stop_rows.append(row)
            self._growing.stop_places.append(choice.output.stop_place)

    def add_logprobs(self, logprobs: Logprobs, num_wanted: NDArray[np.int64], row_of: dict[int, int]) -> None:
        """Take the rows that are added next; `row_of` maps rows of the batch to their order among them.

        `num_wanted` is the number of alternatives by row of the batch.
        """
        columns = self._growing
        first = len(columns.handles)
        for place, row in enumerate(logprobs.rows.tolist()):
            if row not in row_of:
                continue
            num_top = min(int(num_wanted[row]), logprobs.top_token_ids.shape[1])
            columns.logprob_rows.append(first + row_of[row])
            columns.logprobs.append(float(logprobs.chosen[place]))
            columns.top_counts.append(num_top)
            columns.top_token_ids.extend(logprobs.top_token_ids[place, :num_top].tolist())
            columns.top_logprobs.extend(logprobs.top_logprobs[place, :num_top].tolist())

    def finish(self) -> TokenColumns:
        return self._growing.finish()
