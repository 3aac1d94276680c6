"""The elementwise part of a gated MLP: `kernel` in Triton, `reference` in PyTorch."""

from kernels.gated_activation.kernel import gated_activation
from kernels.gated_activation.reference import gated_activation_reference

__all__ = ["gated_activation", "gated_activation_reference"]
