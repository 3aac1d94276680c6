"""What `store_kv` means, in plain PyTorch."""

from torch import Tensor


def store_kv_reference(key: Tensor, value: Tensor, kv_layer: Tensor, slot_mapping: Tensor) -> None:
    """Arguments as for `kernels.store_kv.store_kv`; `kv_layer` is written in place."""
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    block_size = kv_layer.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    kv_layer[blocks, 0, offsets] = key[kept]
    kv_layer[blocks, 1, offsets] = value[kept]
