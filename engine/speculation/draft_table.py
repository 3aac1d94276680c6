"""The drafts of each row of a batch, and how likely they are to be accepted."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.sequence import Choice
from engine.speculation.prompt_lookup import PromptLookup
from scheduling.speculation import Acceptance


class _Drafts:
    """One row's own."""

    __slots__ = ("acceptance", "lookup", "num_outputs")

    def __init__(self, choice: Choice) -> None:
        self.lookup = PromptLookup((*choice.group.spec.prompt_token_ids, *choice.output_token_ids))
        self.num_outputs = len(choice.output_token_ids)
        """Output tokens that the lookup has."""
        self.acceptance = Acceptance()


class DraftTable:
    """Follows the rows of a batch. A row's own part is made when a draft is first asked for."""

    def __init__(self, max_rows: int) -> None:
        self._rows: list[_Drafts | None] = [None] * max_rows

    def join(self, row: int) -> None:
        """A row has another choice from now on."""
        self._rows[row] = None

    def move(self, source: int, target: int) -> None:
        """Overwrite the row that leaves with the last one."""
        self._rows[target] = self._rows[source]

    def draft(self, row: int, choice: Choice, forced: Sequence[int], most: int) -> list[int]:
        """Return at most `most` tokens that may follow those of a choice and some that are sure to follow."""
        drafts = self._rows[row]
        if drafts is None:
            drafts = self._rows[row] = _Drafts(choice)
        new = [*choice.output_token_ids[drafts.num_outputs :], *forced]
        drafts.lookup.extend(new)
        drafts.num_outputs += len(new)
        return drafts.lookup.draft(most)

    def acceptance(self, row: int) -> Acceptance:
        """Return what is known of a row that has had a draft."""
        drafts = self._rows[row]
        assert drafts is not None
        return drafts.acceptance
