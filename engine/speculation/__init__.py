"""Drafts of the next tokens of rows, which the model then verifies.

    prompt_lookup    drafts what followed the newest tokens of a sequence before
    draft_table      the drafts of each row of a batch
    computed_blocks  blocks that a draft model has computed, for sequences that begin alike

Of the engine it imports `engine.core`, for the type of a choice. Drafts of a second model are in
`engine.execution.draft_model`, which runs it.
"""

from __future__ import annotations

import enum


class Speculation(enum.Enum):
    """Where drafts come from, unless from a second model."""

    NONE = "none"
    LOOKUP = "lookup"
