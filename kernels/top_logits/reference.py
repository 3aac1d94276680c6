"""The reference of `top_logits` in plain PyTorch."""

import torch
from torch import Tensor


def top_logits_reference(logits: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Arguments and result as for `kernels.top_logits.top_logits`."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    values, tokens = wide.sort(dim=-1, descending=True, stable=True)
    return values[:, :num], tokens[:, :num]
