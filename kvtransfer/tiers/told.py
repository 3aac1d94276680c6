"""The callbacks by which the tiers tell what happens to blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduling.memory.tiers import Tier

Count = Callable[[Tier, str, int, int], None]
"""Takes the tier, what happened to blocks, how many, and their bytes."""
OnChange = Callable[[Tier, Sequence[bytes], Sequence[bytes]], None]
"""Takes the tier, hashes of blocks that have come to it, and of those that are gone; called on any thread."""


def count_nothing(tier: Tier, outcome: str, num_blocks: int, num_bytes: int) -> None:
    """Ignore what happened to blocks."""


def tell_nobody(tier: Tier, added: Sequence[bytes], removed: Sequence[bytes]) -> None:
    """Ignore what has changed."""


@dataclass(slots=True)
class Told:
    """The callbacks, which are set before the tiers' threads start."""

    in_memory: Tier
    """The tier that blocks in host memory count to: the disk, where they are only on their way to it."""
    count: Count = count_nothing
    on_change: OnChange = tell_nobody
    """Called with the tiers' lock held, so that changes are told in order."""
