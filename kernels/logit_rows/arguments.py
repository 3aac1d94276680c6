"""The parameters of each row's draw, and their checks."""

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from kernels.launch import FLOAT_DTYPES, check_contiguous, check_tensor
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
    check_tensor("logits", logits, ("num_rows", "vocab"), FLOAT_DTYPES)
    num_rows, vocab = logits.shape
    if not 1 <= vocab <= MAX_ITEMS:
        raise ValueError(f"logits has vocab {vocab}; accepted: 1 to {MAX_ITEMS}")
    fields: list[tuple[str, Tensor, tuple[int | str, ...], torch.dtype]] = [
        ("ways", ways, (len(Way), num_rows), torch.float64)
    ]
    if edits is not None:
        fields += [
            ("edits.tokens", edits.tokens, ("num_edits",), torch.int32),
            ("edits.values", edits.values, tuple(edits.tokens.shape), torch.float32),
            ("edits.offsets", edits.offsets, (num_rows + 1,), torch.int32),
        ]
    if seen is not None:
        fields += [
            ("seen.in_prompt", seen.in_prompt, (num_rows, vocab), torch.bool),
            ("seen.counts", seen.counts, (num_rows, vocab), torch.int32),
        ]
    for field, tensor, shape, dtype in fields:
        check_contiguous(field, tensor)
        check_tensor(field, tensor, shape, (dtype,), logits.device)
