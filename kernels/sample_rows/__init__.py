"""The next token of every row of logits: penalties, temperature, top-k, top-p, min-p and the draw.

`kernel` in Triton, `reference` in PyTorch.
"""

from kernels.logit_rows.arguments import Edits, Seen, Way
from kernels.sample_rows.kernel import Tokens, sample_rows
from kernels.sample_rows.reference import sample_rows_reference

__all__ = ["Edits", "Seen", "Tokens", "Way", "sample_rows", "sample_rows_reference"]
