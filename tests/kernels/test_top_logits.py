"""The largest logits, in one order wherever tiles end."""

import pytest
import torch
from torch import Tensor

from kernels.top_logits import top_logits, top_logits_reference
from tests.kernels.interpreter import Interpreter


def tied_logits(num_rows: int, vocab: int, dtype: torch.dtype) -> Tensor:
    """Few different numbers: zeros of both signs, and infinities that ban, among them."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randint(-4, 5, (num_rows, vocab), generator=generator).to(dtype) / 2
    logits[:, ::7] = -0.0
    logits[:, ::11] = float("-inf")
    return logits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("vocab", "num"), [(1, 1), (20, 20), (4096, 5), (4099, 7), (9000, 20)])
def test_kernel_equals_reference(interpreter: Interpreter, vocab: int, num: int, dtype: torch.dtype) -> None:
    logits = tied_logits(2, vocab, dtype)
    values, tokens = interpreter.run("top_logits", logits, num)
    expected, places = top_logits_reference(logits, num)
    assert torch.equal(values, expected)
    assert torch.equal(tokens, places)


def test_logits_may_be_rows_of_something_wider(interpreter: Interpreter) -> None:
    logits = torch.randn(3, 60, generator=torch.Generator().manual_seed(0))
    wider = torch.full((3, 80), torch.nan)
    wider[:, :60] = logits
    values, tokens = interpreter.run("top_logits", wider[:, :60], 4)
    assert torch.equal(values, logits.gather(1, tokens))
    assert torch.equal(values, logits.topk(4).values)


@pytest.mark.parametrize("num", [0, 6])
def test_refuses(num: int) -> None:
    with pytest.raises(ValueError, match=f"num is {num}; accepted: 1 to 5"):
        top_logits(torch.zeros(2, 5), num)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_compiled_kernel_equals_reference(dtype: torch.dtype) -> None:
    logits = tied_logits(64, 128256, dtype)
    values, tokens = top_logits(logits.cuda(), 20)
    expected, places = top_logits_reference(logits, 20)
    assert torch.equal(values.cpu(), expected)
    assert torch.equal(tokens.cpu(), places)
