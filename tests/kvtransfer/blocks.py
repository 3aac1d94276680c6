"""The contents of blocks, by their place in the sender's pool, that both processes of a test agree on."""

import numpy as np

from kvtransfer.pools.pool import BlockPool


def content(place: int, num_bytes: int) -> bytes:
    return np.random.default_rng(place).bytes(num_bytes)


def fill_block(pool: BlockPool, place: int) -> None:
    pool.block_bytes_view(place)[:] = content(place, pool.block_bytes)


def block_hash(index: int) -> bytes:
    return index.to_bytes(16, "big")
