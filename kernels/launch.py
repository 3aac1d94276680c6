"""Whether and how a kernel can run for the tensors at hand."""

from typing import Any

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction


def is_interpreted(kernel: Any) -> bool:
    """True if TRITON_INTERPRET was set when `kernel` was defined (later changes have no effect on it)."""
    return isinstance(kernel, InterpretedFunction)


def can_launch(kernel: Any, device: torch.device) -> bool:
    """Whether `kernel` runs on tensors of this device; where not, the op's reference does."""
    return device.type == "cuda" or is_interpreted(kernel)


def dot_in_fp32(kernel: Any, dtype: torch.dtype) -> bool:
    """The interpreter multiplies bfloat16 operands of `tl.dot` as if their bits were integers."""
    return is_interpreted(kernel) and dtype == torch.bfloat16


def num_sms(device: torch.device) -> int:
    """Multiprocessors that programs can be spread over; 1 where there is no GPU."""
    if device.type != "cuda":
        return 1
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.multi_processor_count)


def pad_to_dot(size: int) -> int:
    """The power of two that holds `size`, and at least 16, the smallest side a tensor core takes."""
    return max(16, next_power_of_2(size))


def next_power_of_2(size: int) -> int:
    return int(triton.next_power_of_2(size))
