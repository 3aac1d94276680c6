"""Add to the residual and normalise by the root mean square: `kernel` in Triton, `reference` in PyTorch."""

from kernels.add_rms_norm.kernel import add_rms_norm
from kernels.add_rms_norm.reference import add_rms_norm_reference

__all__ = ["add_rms_norm", "add_rms_norm_reference"]
