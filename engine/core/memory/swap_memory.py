"""Host memory for blocks of sequences that wait for their place in the pool, as `Room` sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_MAX_LOCKED_BYTES = 8 * 1024**3


def default_num_slots(num_blocks: int, block_bytes: int, *, is_page_locked: bool) -> int:
    """Return half the number of the pool's blocks; page-locked slots, which take seconds, fill 8 GiB."""
    most = num_blocks // 2
    return min(most, _MAX_LOCKED_BYTES // block_bytes) if is_page_locked else most


class SwapMemory(Protocol):
    """Copies blocks out and back in, in the order of the calls and before the next step."""

    @property
    def num_free(self) -> int:
        """Return the number of blocks that there is room for."""
        ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def bytes_per_s(self) -> float:
        """Return the speed of a copy in either direction."""
        ...

    def store(self, blocks: Sequence[int]) -> list[int]:
        """Copy blocks of the pool out and return their slots. The caller has seen that there is room."""
        ...

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy slots back into blocks of the pool; the slots may be released at once."""
        ...

    def release(self, slots: Sequence[int]) -> None:
        """Give slots back."""
        ...

    def check_integrity(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that the slots in `held` are all that are not free."""
        ...

    def check_some(self, held: Sequence[Sequence[int]]) -> None:
        """Assert the same by their number."""
        ...
