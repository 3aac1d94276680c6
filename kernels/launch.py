"""Checks of the arguments of all ops, and whether and how a kernel can run on them.

Errors name the field, its value and the accepted ones.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.language import HAS_TRITON, triton

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KV_LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The 8-bit dtypes that KV may be quantised to, and the largest magnitude used of each."""
MAX_HEAD_DIM = 256


@dataclass(frozen=True, slots=True)
class KVLayerShape:
    """Sizes of one layer's view of the pool, `kv_layer[num_blocks, 2, block_size, num_kv_heads, head_dim]`.

    Index 0 of the second dimension holds keys, index 1 values. The view is taken from a block-major pool
    (`kv_pool[:, layer]`), so a block's stride spans every layer and offsets need 64 bits.
    """

    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int


def check_kv_layer(kv_layer: Tensor, kv_scales: Tensor | None = None) -> KVLayerShape:
    """Check a layer, and `kv_scales[num_blocks, 2, num_kv_heads, block_size]` float32 if it is quantised."""
    dtypes = FLOAT_DTYPES if kv_scales is None else KV_LIMITS
    names = ("num_blocks", 2, "block_size", "num_kv_heads", "head_dim")
    check_tensor("kv_layer", kv_layer, names, dtypes)
    num_blocks, _, block_size, num_kv_heads, head_dim = kv_layer.shape
    if not 1 <= head_dim <= MAX_HEAD_DIM:
        raise ValueError(f"kv_layer has head_dim {head_dim}; accepted: 1 to {MAX_HEAD_DIM}")
    sizes = (num_blocks, 2, num_kv_heads, block_size)
    check_tensor("kv_scales", kv_scales, sizes, (torch.float32,), kv_layer.device)
    return KVLayerShape(num_blocks, block_size, num_kv_heads, head_dim)


def scales_strides(kv_scales: Tensor | None) -> tuple[int | None, ...]:
    """Return the strides of a block, a kind and a head; scales within a head are adjacent."""
    return (None, None, None) if kv_scales is None else kv_scales.stride()[:3]


def check_tensor(
    field: str,
    tensor: Tensor | None,
    shape: Sequence[int | str],
    dtypes: Collection[torch.dtype],
    device: torch.device | None = None,
) -> None:
    """Check one argument, whose last dimension has to be contiguous; None, which stands for none, passes.

    `shape` gives each dimension's size, or the name of one that may have any size. Any device will do by
    default.
    """
    if tensor is None:
        return
    sizes = tensor.shape
    if not _fits(sizes, shape):
        accepted = ", ".join(map(str, shape))
        raise ValueError(f"{field} has shape {list(sizes)}; accepted: [{accepted}]")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{field} has dtype {tensor.dtype}; accepted: {', '.join(map(str, dtypes))}")
    if sizes[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{field} has stride {tensor.stride(-1)} in its last dimension; accepted: 1")
    if device is not None and tensor.device != device:
        raise ValueError(f"{field} is on {tensor.device}; accepted: {device}")


def _fits(sizes: Sequence[int], shape: Sequence[int | str]) -> bool:
    # A loop, since a step checks hundreds of tensors while a GPU waits: a generator takes twice as long.
    if len(sizes) != len(shape):
        return False
    for size, want in zip(sizes, shape, strict=True):
        if size != want and not isinstance(want, str):
            return False
    return True


def check_contiguous(field: str, tensor: Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"{field} has strides {list(tensor.stride())}; accepted: a contiguous tensor")


def check_block_ids(block_ids: Tensor, pool: Tensor) -> None:
    """Check `block_ids[n]` int64 for a contiguous `pool[num_blocks, ...]`; their values only on the CPU.

    On a GPU to read them would stall the stream; the block manager has to get them right.
    """
    check_tensor("block_ids", block_ids, ("n",), (torch.int64,), pool.device)
    check_contiguous("pool", pool)
    if pool.is_cuda or not block_ids.numel():
        return
    lowest, highest = (int(bound) for bound in block_ids.aminmax())
    if lowest < 0 or highest >= len(pool):
        raise ValueError(f"block_ids lie in {lowest}–{highest}; accepted: 0 to {len(pool) - 1}")


def is_interpreted(kernel: Any) -> bool:
    """Return whether TRITON_INTERPRET was set when `kernel` was defined; later changes have no effect."""
    return HAS_TRITON and isinstance(kernel, triton.runtime.interpreter.InterpretedFunction)


def can_launch(kernel: Any, device: torch.device) -> bool:
    """Return whether `kernel` runs on tensors of this device; if not, the op's reference does.

    Raises:
        RuntimeError: the tensors are on a GPU, and Triton is not installed.
    """
    if device.type == "cuda" and not HAS_TRITON:
        raise RuntimeError("a worker on a GPU needs the package triton, which is not installed")
    return device.type == "cuda" or is_interpreted(kernel)


def dot_in_fp32(kernel: Any, dtype: torch.dtype) -> bool:
    """Return whether dots need float32: the interpreter multiplies the bits of bfloat16 as integers."""
    return is_interpreted(kernel) and dtype == torch.bfloat16


def num_sms(device: torch.device) -> int:
    """Return the number of multiprocessors of a device; 1 for a CPU."""
    if device.type != "cuda":
        return 1
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count)


def pad_to_dot(size: int) -> int:
    """Return the power of two from `size` up, at least 16, the smallest side that a tensor core takes."""
    return max(16, next_power_of_2(size))


def next_power_of_2(size: int) -> int:
    """Return the power of two from `size`, at least 1, up."""
    return 1 << (size - 1).bit_length()
