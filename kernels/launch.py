"""Whether a kernel can run on given tensors, and how."""

from typing import Any

import torch

from kernels.language import HAS_TRITON, triton


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
