"""The choices of `--special-tokens-in-content`."""

from __future__ import annotations

import enum


class InContent(enum.StrEnum):
    """Meaning of the text of a control token that a caller wrote into a chat."""

    TEXT = "text"
    KEEP = "keep"
    REFUSE = "refuse"
