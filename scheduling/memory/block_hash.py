"""Chained identity of KV blocks: equal hashes mean equal content.

That is: equal weights, layout, salt, adapter and tokens up to the end of the block.

The hash is blake2b with 128 bits: unlike a checksum, it cannot be forged between tenants.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Iterator, Sequence

HASH_BYTES = 16


def chain_root(fingerprint: str, salt: bytes, adapter: str = "") -> bytes:
    """Return the hash that every chain of one model, one salt and one adapter starts from.

    `adapter` is the adapter's digest, of at most 64 characters; empty for the base model.
    """
    content = fingerprint.encode() + b"\0" + salt
    return hashlib.blake2b(content, digest_size=HASH_BYTES, key=adapter.encode()).digest()


def hash_block(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Return the identity of a block (full or partial) that follows `parent`."""
    return hashlib.blake2b(parent + array.array("I", token_ids).tobytes(), digest_size=HASH_BYTES).digest()


def each_hash(root: bytes, token_ids: Sequence[int], block_size: int) -> Iterator[bytes]:
    """Yield the hashes of all full blocks of `token_ids`, first to last, each when it is asked for."""
    parent = root
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent = hash_block(parent, token_ids[end - block_size : end])
        yield parent


def hash_blocks(root: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Return the hashes of all full blocks of `token_ids`, first to last."""
    return list(each_hash(root, token_ids, block_size))
