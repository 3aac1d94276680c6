"""What of a worker is kept in 8 bits instead of the dtype it computes in: one setting for a whole fleet.

Of the two ways to keep keys and values, `kv8` and `kvfp8`, which take the same memory, int8 is the one to
choose: with a scale for each token and head it is the more exact (`kernels.store_kv.quantise`). fp8 is for
comparing with what was measured or tuned elsewhere with an fp8 cache.
"""

from __future__ import annotations

import enum


class Quantisation(enum.Enum):
    """Named as the flag `--quantisation` names it. Without torch: flags are parsed before it is loaded."""

    NONE = "none"
    INT8 = "int8"
    KV8 = "kv8"
    KVFP8 = "kvfp8"
    INT8_KV8 = "int8+kv8"
    INT8_KVFP8 = "int8+kvfp8"

    @property
    def weights(self) -> bool:
        """Whether linear layers hold int8 weights (`engine.model.int8_weights`)."""
        return "int8" in self._parts

    @property
    def kv(self) -> str | None:
        """The 8-bit dtype of keys and values in the pool, as torch names it (`engine.kv.kv_pool`)."""
        return next((_KV_DTYPES[part] for part in self._parts if part in _KV_DTYPES), None)

    @property
    def _parts(self) -> list[str]:
        return self.value.split("+")


_KV_DTYPES = {"kv8": "int8", "kvfp8": "float8_e4m3fn"}
