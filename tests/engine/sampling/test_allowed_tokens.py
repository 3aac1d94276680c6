"""Masks as they are found and applied: the same on any device, in any type, from any row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.sampling.sampling_table import GrammarMasks
from model_output.grammar.grammar import Grammars, grammar_of
from tests.fleets import DEMO_MODEL

ROWS, VOCAB, EOS = 19, 2048, 2
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(DEMO_MODEL / "tokenizer.json", VOCAB, [EOS])


def masks_of(grammars: Grammars) -> tuple[GrammarMasks, Tensor]:
    """Masks of rows of which every third has no grammar, and which tokens they allow."""
    masks, allowed = GrammarMasks(ROWS, VOCAB, CPU), torch.ones(ROWS, VOCAB, dtype=torch.bool)
    rows = [row for row in range(ROWS) if row % 3]
    for row in rows:
        compiled = grammars.compiled(grammar_of("regex", f"[a-{chr(97 + row)}]+"))
        masks.set(row, compiled.begin())
        bits = np.frombuffer(compiled.begin().allowed_after(()) or b"", dtype=np.uint8)
        allowed[row] = torch.from_numpy(np.unpackbits(bits, bitorder="little").astype(np.bool_))
    masks.begin(rows)
    masks.wait()
    assert not masks.stuck(rows)
    return masks, allowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("first_row", "num_rows"), [(0, ROWS), (4, ROWS - 4), (3, 1), (0, 1)])
def test_only_allowed_tokens_stay(
    grammars: Grammars, dtype: torch.dtype, first_row: int, num_rows: int
) -> None:
    masks, allowed = masks_of(grammars)
    logits = torch.randn(num_rows, VOCAB, dtype=dtype)
    expected = logits.masked_fill(~allowed[first_row : first_row + num_rows], float("-inf"))
    masks.apply(logits, slice(first_row, first_row + num_rows))
    assert torch.equal(logits, expected)


class Operations(TorchDispatchMode):
    """Keeps the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func.overloadpacket))
        return func(*args, **(kwargs or {}))


def test_nothing_of_the_logits_comes_to_the_host(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all rows go at once, as on a GPU, one gather and one addition change them all."""
    monkeypatch.setattr("engine.sampling.sampling_table.ROWS_AT_ONCE_ON_CPU", ROWS)
    masks, _ = masks_of(grammars)
    logits = torch.randn(ROWS, VOCAB)
    with Operations() as seen:
        masks.apply(logits, slice(0, len(logits)))
    assert seen.names.count("aten.index_select") == seen.names.count("aten.index_add_") == 1
    assert not {"aten._local_scalar_dense", "aten.nonzero"} & set(seen.names)


def test_a_row_that_moves_takes_its_state_with_it(grammars: Grammars) -> None:
    masks, allowed = masks_of(grammars)
    masks.move(ROWS - 1, 2)
    logits = torch.zeros(3, VOCAB)
    masks.apply(logits, slice(0, len(logits)))
    assert torch.equal(torch.isfinite(logits[2]), allowed[ROWS - 1])


def test_an_output_that_cannot_go_on_is_stuck(grammars: Grammars) -> None:
    masks, follower = GrammarMasks(2, VOCAB, CPU), grammars.compiled(grammar_of("choice", '["yes"]')).begin()
    masks.set(1, follower)
    follower.follow([5, 6, 7])
    masks.begin([1])
    masks.wait()
    assert list(masks.stuck([1])) == [1]
    logits = torch.zeros(2, VOCAB)
    masks.apply(logits, slice(0, len(logits)))
    assert not torch.isfinite(logits[1]).any()
