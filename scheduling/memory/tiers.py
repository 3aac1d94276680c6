"""The places in which a worker has KV blocks."""

from __future__ import annotations

import enum


class Tier(enum.Enum):
    """A place for KV blocks: each is larger and slower than the one before."""

    POOL = "pool"
    """The memory that steps compute in."""
    HOST = "host"
    """Memory of the host for blocks that have left the pool."""
    DISK = "disk"
    """Files for blocks that have left the host's memory, or the pool where there is none."""
