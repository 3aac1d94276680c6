"""A linear layer whose result for a row does not depend on the rows beside it.

`kernel` in Triton, `reference` in PyTorch.
"""

from kernels.invariant_linear.kernel import invariant_linear
from kernels.invariant_linear.reference import invariant_linear_reference

__all__ = ["invariant_linear", "invariant_linear_reference"]
