"""The refusal of a format, apart from its compiler: routers know it without loading llguidance."""

from __future__ import annotations


class GrammarRefused(ValueError):
    """The format cannot be guaranteed; the message says why."""
