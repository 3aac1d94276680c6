"""What can go wrong in the engine through no fault of its own.

EngineError
├── FusionDiffers     a fused part gives something else than what it was to replace
├── ModelRefused      a model directory that cannot be served as its makers meant it
└── NotDeterministic  this machine gives a token other logits in other company
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class EngineError(Exception):
    """Root of the tree."""


class FusionDiffers(EngineError):
    """Fused, `part` gives something else than before, by `difference` relative to what it gave."""

    def __init__(self, part: str, difference: float, tolerance: float) -> None:
        super().__init__(f"{part} differs by {difference:.1e} once fused; accepted: {tolerance:.0e}")
        self.part = part
        self.difference = difference
        self.tolerance = tolerance


class ModelRefused(EngineError):
    """`directory` cannot be served: `field` is not among what is `accepted`."""

    def __init__(self, directory: Path, field: str, found: str, accepted: str) -> None:
        super().__init__(f"model {directory}: {field} {found}; accepted: {accepted}")
        self.directory = directory
        self.field = field
        self.found = found
        self.accepted = accepted


class NotDeterministic(EngineError):
    """Computed `way` instead of alone, rows `rows` of a sequence of `length` tokens came out otherwise."""

    def __init__(self, way: str, length: int, rows: Sequence[int]) -> None:
        super().__init__(
            f"--deterministic: logits differ in {len(rows)} rows of {length} (the first is {rows[0]}) "
            f"when computed {way}; accepted: a machine whose matrix products of one shape are the same "
            "wherever a row stands; --threads 1 may be one"
        )
        self.way = way
        self.length = length
        self.rows = list(rows)
