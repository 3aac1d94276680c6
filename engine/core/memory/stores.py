"""Where blocks are, as the core sees it: the pool, host memory, other tiers and other workers.

An executor hands in what implements these. `BlockManager` hands out physical blocks. A simulation keeps
counts where nobody looks at the blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from scheduling.memory.prefix_reads import TierHit

_MAX_LOCKED_BYTES = 8 * 1024**3


class BlockPool(Protocol):
    """Reference-counted blocks with a prefix cache and reservations; `BlockManager` says what each does."""

    num_blocks: int
    block_size: int

    @property
    def num_cached_blocks(self) -> int: ...
    @property
    def num_available_blocks(self) -> int: ...
    @property
    def num_taken_blocks(self) -> int: ...

    def reserve(self, num_blocks: int, prefix: Sequence[bytes] = ()) -> list[int]: ...
    def unreserve(self, num_blocks: int) -> None: ...
    def exchange(self, block_hash: bytes) -> int | None: ...
    def allocate(self, num_blocks: int) -> list[int]: ...
    def restore(self, hashes: Sequence[bytes | None], spare: int) -> tuple[list[int], list[int]]: ...
    def share(self, block_table: Sequence[int]) -> list[int]: ...
    def free(self, block_table: Sequence[int]) -> None: ...

    def register(self, block: int, block_hash: bytes) -> int: ...
    def forget(self, blocks: Iterable[int]) -> None: ...
    def hash_of(self, block: int) -> bytes | None: ...
    def num_exclusive(self, block_tables: Sequence[Sequence[int]]) -> int: ...

    def check_integrity(self, block_tables: Collection[Sequence[int]], num_reserved: int) -> None: ...
    def check_some(self, block_tables: Collection[Sequence[int]], num_reserved: int) -> None: ...


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


class KVTiers(Protocol):
    """Keeps blocks that leave the pool, by their hashes. No call waits for a disk."""

    def keep(self, blocks: Sequence[int], hashes: Sequence[bytes]) -> None:
        """Copy blocks of the pool, which are about to get other content, as far as there is room for them.

        Whatever the calling thread puts on the device afterwards runs behind the copies.
        """
        ...

    def forget(self, block_hash: bytes) -> None:
        """Drop a block whose content turned out wrong."""
        ...

    def readable(self, hashes: Sequence[bytes]) -> Sequence[TierHit]:
        """Return how many of `hashes`, from the first on, can be read, and how long that is expected to take.

        There is an entry for those that only fast tiers are needed for, and one for all.
        """
        ...


class KVLinks(Protocol):
    """The links to other workers that lend blocks. No call waits for them."""

    def fetch_s(self, incarnation: str, num_blocks: int) -> float:
        """Return how long it is expected to take from now on to fetch so many blocks from a process."""
        ...
