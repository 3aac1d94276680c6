"""What of a worker is kept in 8 bits instead of the dtype it computes in: one setting for a whole fleet."""

from __future__ import annotations

import enum


class Quantisation(enum.Enum):
    """Named as the flag `--quantisation` names it. Without torch: flags are parsed before it is loaded."""

    NONE = "none"
    INT8 = "int8"
    KV8 = "kv8"
    INT8_KV8 = "int8+kv8"

    @property
    def weights(self) -> bool:
        """Whether linear layers hold int8 weights (`engine.int8_weights`)."""
        return self in {Quantisation.INT8, Quantisation.INT8_KV8}

    @property
    def kv(self) -> bool:
        """Whether the pool holds int8 keys and values (`engine.kv_pool`)."""
        return self in {Quantisation.KV8, Quantisation.INT8_KV8}
