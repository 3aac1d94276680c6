"""Opens the links to other workers that a worker's flags ask for."""

from __future__ import annotations

from engine.kv.kv_pool import KVPool
from kvtransfer.receiving.links import Links


class LinkOpener:
    """Makes the links once the size of a block is known."""

    def __init__(self) -> None:
        self.links: Links | None = None

    def open(self, pool: KVPool) -> Links:
        """Return the links for the blocks of `pool`, and remember them."""
        self.links = Links(pool.block_bytes)
        return self.links
