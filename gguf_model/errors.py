"""Why a GGUF file cannot be served, in one sentence."""

from __future__ import annotations

from pathlib import Path


class GgufUnusable(Exception):
    """The file has `fault`, which is not `accepted`."""

    def __init__(self, path: Path, fault: str, accepted: str) -> None:
        super().__init__(f"{path} {fault}; accepted: {accepted}")
        self.path = path
        self.fault = fault
        self.accepted = accepted


def shown(value: object) -> str:
    """Return a value of a file for a message, which it cannot make long or unreadable."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
