"""The drafts of each row of a batch, and how likely they are to be accepted."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.sequence import Choice
from engine.speculation.prompt_lookup import PromptLookup
from scheduling.speculation import Acceptance, Drafter


class _Drafts:
    """One row's own."""

    __slots__ = ("acceptances", "lookup", "num_computed", "num_outputs")

    def __init__(self) -> None:
        self.acceptances = {drafter: Acceptance() for drafter in Drafter}
        self.lookup: PromptLookup | None = None
        """Made when it is first asked."""
        self.num_outputs = 0
        """Output tokens that the lookup has."""
        self.num_computed = 0
        """Leading tokens of the sequence whose KV a draft model has computed into the row's blocks."""


class DraftTable:
    """Follows the rows of a batch. A row's own part is made when it is first asked for.

    A choice that comes back to the batch, with other blocks, begins anew.
    """

    def __init__(self, max_rows: int) -> None:
        self._rows: list[_Drafts | None] = [None] * max_rows

    def join(self, row: int) -> None:
        """A row has another choice from now on."""
        self._rows[row] = None

    def move(self, source: int, target: int) -> None:
        """Overwrite the row that leaves with the last one."""
        self._rows[target] = self._rows[source]

    def look_up(self, row: int, choice: Choice, forced: Sequence[int], most: int) -> list[int]:
        """Return at most `most` tokens that may follow those of a choice and some that are sure to follow.

        They are what followed the newest ones where these stood before.
        """
        drafts = self._of(row)
        if drafts.lookup is None:
            drafts.lookup = PromptLookup((*choice.group.spec.prompt_token_ids, *choice.output_token_ids))
            drafts.num_outputs = len(choice.output_token_ids)
        new = [*choice.output_token_ids[drafts.num_outputs :], *forced]
        drafts.lookup.extend(new)
        drafts.num_outputs += len(new)
        return drafts.lookup.draft(most)

    def acceptance(self, row: int, drafter: Drafter) -> Acceptance:
        """Return what is known of a drafter's tokens for a row."""
        return self._of(row).acceptances[drafter]

    def num_computed(self, row: int) -> int:
        """Return how many leading tokens of a row a draft model has computed."""
        return self._of(row).num_computed

    def set_computed(self, row: int, num_tokens: int) -> None:
        """Set how many leading tokens of a row a draft model has computed."""
        self._of(row).num_computed = num_tokens

    def _of(self, row: int) -> _Drafts:
        drafts = self._rows[row]
        if drafts is None:
            drafts = self._rows[row] = _Drafts()
        return drafts
