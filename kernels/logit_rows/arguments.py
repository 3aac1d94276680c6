"""The parameters of each row's draw, and their checks."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from kernels.checks import check_dtype, check_rows, check_same_device, check_shape
from kernels.selection.kernel import MAX_ITEMS


class Way(IntEnum):
    """Rows of the tensor `ways` [len(Way), num_rows] float64: how each row's token is drawn."""

    TEMPERATURE = 0
    """0 takes the largest logit; of the other parameters only penalties count then."""
    TOP_K = 1
    """A whole number; 0 keeps all."""
    TOP_P = 2
    MIN_P = 3
    REPETITION = 4
    PRESENCE = 5
    FREQUENCY = 6
    NOISE = 7
    """A number in (0, 1): the token's place in the distribution function."""
    OTHERS = 8
    """Added to logits without an edit: 0, or -inf if only tokens with edits may be drawn. Ignored without any
    edits."""


@dataclass(frozen=True, slots=True)
class Edits:
    """Numbers added to single logits before all else; -inf bans a token.

    tokens   [num_edits] int32, ascending within each row, none twice
    values   [num_edits] float32
    offsets  [num_rows + 1] int32: row r has those from offsets[r] to offsets[r + 1]
    """

    tokens: Tensor
    values: Tensor
    offsets: Tensor


@dataclass(frozen=True, slots=True)
class Seen:
    """The tokens that rows with penalties have seen; other rows are neither read nor written.

    in_prompt  [num_rows, vocab] bool
    counts     [num_rows, vocab] int32, occurrences in the output; the drawn token is added
    """

    in_prompt: Tensor
    counts: Tensor


def check_arguments(logits: Tensor, ways: Tensor, edits: Edits | None, seen: Seen | None) -> None:
    check_shape("logits", logits, "num_rows", "vocab")
    check_dtype("logits", logits, torch.float16, torch.bfloat16, torch.float32, torch.float64)
    check_rows("logits", logits)
    num_rows, vocab = logits.shape
    if not 1 <= vocab <= MAX_ITEMS:
        raise ValueError(f"logits has vocab {vocab}; accepted: 1 to {MAX_ITEMS}")
    check_shape("ways", ways, len(Way), num_rows)
    fields = [("ways", ways, torch.float64)]
    if edits is not None:
        check_shape("edits.offsets", edits.offsets, num_rows + 1)
        check_shape("edits.tokens", edits.tokens, "num_edits")
        check_shape("edits.values", edits.values, edits.tokens.shape[0])
        fields += [
            ("edits.tokens", edits.tokens, torch.int32),
            ("edits.values", edits.values, torch.float32),
            ("edits.offsets", edits.offsets, torch.int32),
        ]
    if seen is not None:
        fields += [
            ("seen.in_prompt", seen.in_prompt, torch.bool),
            ("seen.counts", seen.counts, torch.int32),
        ]
        check_shape("seen.in_prompt", seen.in_prompt, num_rows, vocab)
        check_shape("seen.counts", seen.counts, num_rows, vocab)
    for field, tensor, dtype in fields:
        check_dtype(field, tensor, dtype)
        if not tensor.is_contiguous():
            raise ValueError(f"{field} has strides {list(tensor.stride())}; accepted: contiguous")
    check_same_device(logits.device, [(field, tensor) for field, tensor, _ in fields])
