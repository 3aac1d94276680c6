"""The reference of `store_kv` in plain PyTorch."""

from torch import Tensor

from kernels.store_kv.quantise import quantise


def store_kv_reference(
    key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor, kv_scales: Tensor | None = None
) -> None:
    """Arguments as for `kernels.store_kv.store_kv`; `kv_layer` and `kv_scales` are written in place."""
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_size = kv_layer.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    for kind, tokens in enumerate((key[kept], value[kept])):
        stored = tokens
        if kv_scales is not None:
            stored, kv_scales[blocks, kind, :, offsets] = quantise(tokens, kv_layer.dtype)
        kv_layer[blocks, kind, offsets] = stored
