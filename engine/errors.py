"""Errors of the engine that its model, settings or machine cause.

EngineError
├── AdapterRefused    a LoRA adapter that cannot be served correctly
├── DraftRefused      a draft model that cannot draft for the model
├── FusionDiffers     a fused part does not compute the same as the part it replaces
├── GroupRefused      a follower of a group that computes each step together cannot take part
├── ModelRefused      a model directory that cannot be served correctly
│   └── NotProven     a part of the model does not compute what transformers' own does
└── NotDeterministic  on this machine a token's logits depend on the rest of the step

GroupBrokenError, which is no Exception: a group has lost a process, or a step, and can compute nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self


class EngineError(Exception):
    """Root of the tree."""


class AdapterRefused(EngineError):
    """The adapter `name` cannot be served: `field` has a value that is not `accepted`."""

    def __init__(self, name: str, path: Path, field: str, found: str, accepted: str) -> None:
        super().__init__(f"--lora {name}={path}: {field} {found}; accepted: {accepted}")
        self.name = name
        self.path = path
        self.field = field
        self.found = found
        self.accepted = accepted


class FusionDiffers(EngineError):
    """`part` gives other numbers once fused, by the relative `difference`."""

    def __init__(self, part: str, difference: float, tolerance: float) -> None:
        super().__init__(f"{part} differs by {difference:.1e} once fused; accepted: {tolerance:.0e}")
        self.part = part
        self.difference = difference
        self.tolerance = tolerance


class GroupRefused(EngineError):
    """The follower of `rank` in the group that a flag asks for has `found`, which is not `accepted`."""

    def __init__(self, flag: str, rank: int, found: str, accepted: str) -> None:
        super().__init__(f"{flag}: its process of rank {rank} {found}; accepted: {accepted}")
        self.rank = rank
        self.found = found
        self.accepted = accepted


class GroupBrokenError(BaseException):
    """A group cannot go on. It is no Exception, so that no loop goes on with the next step."""


class ModelRefused(EngineError):
    """The model in `directory` cannot be served: `field` has a value that is not `accepted`."""

    def __init__(self, directory: Path, field: str, found: str, accepted: str) -> None:
        super().__init__(f"model {directory}: {field} {found}; accepted: {accepted}")
        self.directory = directory
        self.field = field
        self.found = found
        self.accepted = accepted


class DraftRefused(EngineError):
    """The draft model in `directory` cannot draft: `field` has a value that is not `accepted`."""

    def __init__(self, directory: Path, field: str, found: str, accepted: str) -> None:
        super().__init__(f"--draft-model {directory}: {field} {found}; accepted: {accepted}")
        self.directory = directory
        self.field = field
        self.found = found
        self.accepted = accepted

    @classmethod
    def from_model(cls, error: ModelRefused) -> Self:
        """Return the error for a draft model that no worker could serve either."""
        return cls(error.directory, error.field, error.found, error.accepted)


class NotProven(ModelRefused):
    """`part` of the model, computed `way`, is further from transformers' own than tolerated."""

    def __init__(self, directory: Path, part: str, way: str, difference: float, tolerance: float) -> None:
        super().__init__(
            directory,
            part,
            f"differs from transformers' own by {difference:.1e} of its length when computed {way}",
            f"at most {tolerance:.1e}, a multiple of what rounding changes",
        )
        self.part = part
        self.way = way
        self.difference = difference
        self.tolerance = tolerance


class NotDeterministic(EngineError):
    """The rows `rows` of a sequence of `length` tokens differ when computed `way` instead of alone."""

    def __init__(self, way: str, length: int, rows: Sequence[int]) -> None:
        super().__init__(
            f"--deterministic: logits differ in {len(rows)} rows of {length} (the first is {rows[0]}) "
            f"when computed {way}; accepted: a machine whose matrix products of one shape are the same "
            "wherever a row stands; --threads 1 may be one"
        )
        self.way = way
        self.length = length
        self.rows = list(rows)
