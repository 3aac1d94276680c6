"""The reference of `int8_linear` in plain PyTorch."""

from torch import Tensor


def int8_linear_reference(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Arguments as for `kernels.int8_linear.int8_linear`."""
    out = (x.float() @ weight.float().t()) * scale.float()
    return (out if bias is None else out + bias.float()).to(x.dtype)
