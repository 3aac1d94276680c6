"""The largest logits of each row, and their tokens: `kernel` in Triton, `reference` in PyTorch."""

from kernels.top_logits.kernel import top_logits
from kernels.top_logits.reference import top_logits_reference

__all__ = ["top_logits", "top_logits_reference"]
