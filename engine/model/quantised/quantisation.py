"""The setting that says what is kept in 8 bits; it is the same in a whole fleet.

`kv8` and `kvfp8` keep keys and values in the same memory. int8 is more exact, as it has a scale for each
token and head (`kernels.store_kv.quantise`). fp8 allows comparison with systems that have an fp8 cache.
"""

from __future__ import annotations

import enum


class Quantisation(enum.Enum):
    """The values of `--quantisation`. Free of torch, since flags are parsed before torch is loaded."""

    NONE = "none"
    INT8 = "int8"
    KV8 = "kv8"
    KVFP8 = "kvfp8"
    INT8_KV8 = "int8+kv8"
    INT8_KVFP8 = "int8+kvfp8"

    @property
    def weights(self) -> bool:
        """Whether linear layers have int8 weights (`engine.model.quantised.int8_weights`)."""
        return "int8" in self._parts

    @property
    def kv(self) -> str | None:
        """Torch's name of the 8-bit dtype of keys and values in the pool; None if they are not quantised."""
        return next((_KV_DTYPES[part] for part in self._parts if part in _KV_DTYPES), None)

    @property
    def _parts(self) -> list[str]:
        return self.value.split("+")


_KV_DTYPES = {"kv8": "int8", "kvfp8": "float8_e4m3fn"}
