"""What can go wrong in the engine through no fault of its own.

EngineError
└── ModelRefused    a model directory that cannot be served as its makers meant it
"""

from __future__ import annotations

from pathlib import Path


class EngineError(Exception):
    """Root of the tree."""


class ModelRefused(EngineError):
    """`directory` cannot be served: `field` is not among what is `accepted`."""

    def __init__(self, directory: Path, field: str, found: str, accepted: str) -> None:
        super().__init__(f"model {directory}: {field} {found}; accepted: {accepted}")
        self.directory = directory
        self.field = field
        self.found = found
        self.accepted = accepted
