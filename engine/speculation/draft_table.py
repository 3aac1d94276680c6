"""The drafts of each row of a batch, and how likely they are to be accepted."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.sequence import Choice
from engine.speculation.prompt_lookup import PromptLookup
from scheduling.speculation import Acceptance, Drafter


class RowDrafts:
    """One row's own."""

    __slots__ = ("_lookup", "_num_outputs", "acceptances", "num_computed", "num_kept_blocks")

    def __init__(self, of_model: Acceptance) -> None:
        self.acceptances = {Drafter.LOOKUP: Acceptance(), Drafter.MODEL: Acceptance(of_model)}
        """How likely the next token of each drafter is accepted."""
        self.num_computed = 0
        """Leading tokens of the sequence whose KV a draft model has computed into the row's blocks."""
        self.num_kept_blocks = 0
        """Leading blocks of which other sequences may know that they are computed."""
        self._lookup: PromptLookup | None = None
        """Made when it is first asked."""
        self._num_outputs = 0
        """Output tokens that the lookup has."""

    def look_up(self, choice: Choice, forced: Sequence[int], most: int) -> list[int]:
        """Return at most `most` tokens that may follow those of the choice and some that are sure to follow.

        They are what followed the newest ones where these stood before.
        """
        if self._lookup is None:
            self._lookup = PromptLookup((*choice.group.spec.prompt_token_ids, *choice.output_token_ids))
            self._num_outputs = len(choice.output_token_ids)
        new = [*choice.output_token_ids[self._num_outputs :], *forced]
        self._lookup.extend(new)
        self._num_outputs += len(new)
        return self._lookup.draft(most)


class DraftTable:
    """Follows the rows of a batch. A row's own part is made when it is first asked for.

    A choice that comes back to the batch, with other blocks, begins anew.
    """

    def __init__(self, max_rows: int) -> None:
        self._rows: list[RowDrafts | None] = [None] * max_rows
        self.of_model = Acceptance()
        """How likely tokens of a draft model are accepted in any row: new rows are expected to be alike."""

    def __getitem__(self, row: int) -> RowDrafts:
        """Return a row's own part."""
        drafts = self._rows[row]
        if drafts is None:
            drafts = self._rows[row] = RowDrafts(self.of_model)
        return drafts

    def join(self, row: int) -> None:
        """A row has another choice from now on."""
        self._rows[row] = None

    def move(self, source: int, target: int) -> None:
        """Overwrite the row that leaves with the last one."""
        self._rows[target] = self._rows[source]
