"""Collects the rows of tokens that one report of the step loop contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from engine.core.sequence import Choice, SequenceGroup
from engine.sampling.drawn import Logprobs
from scheduling.columns import TokenColumns


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
        for row, (index, token_id) in enumerate(zip(first.choices, first.token_ids, strict=True)):
            if index not in choices:
                continue
            if row in places:
                place = places[row]
                top = slice(ends[place] - first.top_counts[place], ends[place])
                tops = first.top_token_ids[top], first.top_logprobs[top]
                self._add_logprobs(self.num_rows, first.logprobs[place], *tops)
            self.add([choices[index]], [token_id])

    def add(self, choices: Sequence[Choice], token_ids: Sequence[int]) -> None:
        """Append a token to each choice, with a row for each."""
        for choice, token_id in zip(choices, token_ids, strict=True):
            self._handles.append(choice.group.handle)
            self._choices.append(choice.index)
            self._indexes.append(choice.num_outputs)
            text, reason = choice.push(token_id)
            self._texts.append(text.encode())
            self._finish_reasons.append(reason)
            if choice.is_finished and choice.output.stop_place is not None:
                self._stop_rows.append(self.num_rows - 1)
                self._stop_places.append(choice.output.stop_place)
        self._token_ids.extend(token_ids)

    def add_logprobs(self, logprobs: Logprobs, choices: Mapping[int, Choice]) -> None:
        """Take log-probabilities of the rows that are added next: those of `choices`, by row of the batch."""
        order = {row: place for place, row in enumerate(choices)}
        for place, row in enumerate(logprobs.rows.tolist()):
            if row in choices:
                num_top = choices[row].group.spec.sampling.logprobs or 0
                tops = logprobs.top_token_ids[place, :num_top], logprobs.top_logprobs[place, :num_top]
                chosen = float(logprobs.chosen[place])
                self._add_logprobs(self.num_rows + order[row], chosen, *(part.tolist() for part in tops))

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
