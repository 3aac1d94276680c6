from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from kernels.add_rms_norm import add_rms_norm, add_rms_norm_reference
from tests.kernels.interpreter import Interpreter
from tests.kernels.tensors import FLOATS, among_nan, around, assert_close, randn, same_bits

EPS = 1e-5
# In 16 bits a sum in another order can move a value across one rounding, and its product with the weight
# across another. In float32 the order itself costs a few eps.
NEAR = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 8}
# Triton's interpreter cuts float32 to bfloat16 instead of rounding it: an eps each time.
INTERPRETED = NEAR | {torch.bfloat16: 4}
NORMS = {"llama": (LlamaRMSNorm, False), "gemma": (Gemma2RMSNorm, True)}


def make(num_tokens: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x, residual and weight."""
    x = randn(num_tokens, size, dtype=dtype)
    return x, randn(num_tokens, size, dtype=dtype, seed=1), randn(size, dtype=dtype, seed=2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("norm", "unit_offset"), NORMS.values(), ids=NORMS)
def test_without_a_gpu_it_is_transformers_norm_of_the_sum_bit_by_bit(
    norm: type[nn.Module], unit_offset: bool, dtype: torch.dtype, without_native: None
) -> None:
    x, residual, weight = make(5, 80, dtype)
    module = norm(80, EPS)
    module.weight = nn.Parameter(weight)
    total = residual + x
    assert same_bits(add_rms_norm(x, residual, weight, EPS, unit_offset=unit_offset), module(total).detach())
    assert same_bits(residual, total)
    assert same_bits(add_rms_norm(x, None, weight, EPS, unit_offset=unit_offset), module(x).detach())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("unit_offset", [False, True], ids=["llama", "gemma"])
@pytest.mark.parametrize("size", [1, 16, 300])
def test_kernel_adds_and_normalises(
    interpreter: Interpreter, size: int, unit_offset: bool, dtype: torch.dtype
) -> None:
    x, residual, weight = make(3, size, dtype)
    x, residual, total = among_nan(x), among_nan(residual), residual + x
    got, after = interpreter.run_and_return_args(
        "add_rms_norm", x, residual, weight, EPS, unit_offset=unit_offset
    )
    assert_close(after[1], total, eps=1 if dtype == torch.bfloat16 else 0)
    assert around(after[1]).isnan().all()
    assert got.is_contiguous()
    want = add_rms_norm_reference(after[1], None, weight, EPS, unit_offset=unit_offset)
    assert_close(got, want, eps=INTERPRETED[dtype])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_kernel_normalises_what_has_no_residual(interpreter: Interpreter, dtype: torch.dtype) -> None:
    x, _, weight = make(3, 80, dtype)
    got = interpreter.run("add_rms_norm", among_nan(x), None, weight, EPS)
    assert_close(got, add_rms_norm_reference(x, None, weight, EPS), eps=INTERPRETED[dtype])


def test_float64_keeps_its_precision() -> None:
    x, _, weight = make(3, 80, torch.float64)
    want = x / (x.square().mean(1, keepdim=True) + EPS).sqrt() * weight
    assert_close(add_rms_norm(x, None, weight, EPS), want, eps=8)


def test_a_row_has_the_same_bits_in_any_company(interpreter: Interpreter) -> None:
    x, _, weight = make(5, 300, torch.float32)
    together = interpreter.run("add_rms_norm", x, None, weight, EPS)
    for row in range(5):
        alone = interpreter.run("add_rms_norm", x[row : row + 1], None, weight, EPS)
        assert same_bits(alone[0], together[row])


def test_no_tokens_give_no_rows(interpreter: Interpreter) -> None:
    x, residual, weight = make(0, 16, torch.float32)
    assert interpreter.run("add_rms_norm", x, residual, weight, EPS).shape == (0, 16)


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "x_of_ints": ({"x": torch.zeros(2, 16).int()}, "x has dtype torch.int32"),
    "x_batched": ({"x": torch.zeros(1, 2, 16)}, r"x has shape \[1, 2, 16\]; accepted: \[num_tokens, size\]"),
    "x_strided": ({"x": torch.zeros(16, 2).mT}, "x has stride 2 in its last dimension"),
    "residual_rows": ({"residual": torch.zeros(3, 16)}, r"residual has shape \[3, 16\]; accepted: \[2, 16\]"),
    "residual_dtype": ({"residual": torch.zeros(2, 16).half()}, "residual has dtype torch.float16"),
    "weight_size": ({"weight": torch.zeros(8)}, r"weight has shape \[8\]; accepted: \[16\]"),
    "weight_dtype": ({"weight": torch.zeros(16).half()}, "weight has dtype torch.float16"),
    "device": ({"residual": torch.zeros(2, 16, device="meta")}, "residual is on meta; accepted: cpu"),
}


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_refuses(bad: str) -> None:
    changed, message = BAD_ARGUMENTS[bad]
    good = {"x": torch.zeros(2, 16), "residual": torch.zeros(2, 16), "weight": torch.zeros(16)}
    with pytest.raises(ValueError, match=message):
        add_rms_norm(**{**good, **changed}, eps=EPS)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("size", [80, 2304, 4096, 5120])
def test_compiled_kernel_matches_and_is_batch_invariant(size: int, dtype: torch.dtype) -> None:
    x, residual, weight = make(200, size, dtype)
    total = residual + x
    on_gpu = residual.cuda()
    got = add_rms_norm(x.cuda(), on_gpu, weight.cuda(), EPS)
    assert same_bits(on_gpu.cpu(), total)
    assert_close(got, add_rms_norm_reference(total, None, weight, EPS), eps=NEAR[dtype])
    for row in (0, 7, 199):
        alone = add_rms_norm(on_gpu[row : row + 1], None, weight.cuda(), EPS)
        assert same_bits(alone[0], got[row])
