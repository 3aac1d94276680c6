"""Drafts of the next tokens of rows, which the model then verifies.

    prompt_lookup    drafts what followed the newest tokens of a sequence before
    computed_blocks  blocks that a draft model has computed, for sequences that begin alike

It imports nothing of the engine. The drafts of each row of a batch are in `engine.execution.device_rows`, and
drafts of a second model in `engine.execution.draft_model`, which runs it.
"""

from __future__ import annotations

import enum


class Speculation(enum.Enum):
    """Where drafts come from, unless from a second model."""

    NONE = "none"
    LOOKUP = "lookup"
