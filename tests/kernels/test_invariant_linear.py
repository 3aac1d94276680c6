from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels.invariant_linear import invariant_linear, kernel
from tests.kernels.compiling import assert_runs_on_hopper, record
from tests.kernels.interpreter import Interpreter
from tests.kernels.tensors import FLOATS, among_nan, randn, same_bits


def make(num_tokens: int, in_size: int, out_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias."""
    x, weight = randn(num_tokens, in_size, dtype=dtype), randn(out_size, in_size, dtype=dtype, seed=1)
    return x, weight, randn(out_size, dtype=dtype, seed=2)


def assert_is_product(got: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Rounded once, or cut off to bfloat16 by the interpreter, after a sum in float32 of which each term may
    lose a few eps.
    """
    x, weight, bias = x.double().cpu(), weight.double().cpu(), None if bias is None else bias.double().cpu()
    want = functional.linear(x, weight, bias)
    sizes = functional.linear(x.abs(), weight.abs())
    error = (got.double().cpu() - want).abs()
    room = torch.finfo(got.dtype).eps * want.abs() + 8 * torch.finfo(torch.float32).eps * sizes
    assert bool((error <= room).all())


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_without_a_gpu_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    x, weight, bias = make(37, 72, 40, dtype)
    together = invariant_linear(x, weight, bias)
    assert_is_product(together, x, weight, bias)
    for begin, end in ((0, 1), (36, 37), (5, 21)):
        assert same_bits(invariant_linear(x[begin:end], weight, bias), together[begin:end])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("biased", [True, False])
def test_kernel_multiplies(interpreter: Interpreter, biased: bool, dtype: torch.dtype) -> None:
    x, weight, bias = make(5, 200, 70, dtype)
    wanted = bias if biased else None
    got = interpreter.run("invariant_linear", among_nan(x), among_nan(weight), wanted)
    assert_is_product(got, x, weight, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_kernel_gives_a_row_the_same_bits_in_any_company(
    interpreter: Interpreter, dtype: torch.dtype
) -> None:
    x, weight, bias = make(70, 200, 70, dtype)  # two tiles of tokens, the second hardly filled
    together = interpreter.run("invariant_linear", x, weight, bias)
    assert_is_product(together, x, weight, bias)
    for begin, end in ((0, 1), (69, 70), (5, 67)):
        alone = interpreter.run("invariant_linear", x[begin:end], weight, bias)
        assert same_bits(alone, together[begin:end])


def test_no_tokens_give_no_rows(interpreter: Interpreter) -> None:
    assert interpreter.run("invariant_linear", *make(0, 16, 8, torch.float32)).shape == (0, 8)
    assert invariant_linear(*make(0, 16, 8, torch.float32)).shape == (0, 8)


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "x_of_ints": ({"x": torch.zeros(2, 16).int()}, "x has dtype torch.int32"),
    "x_strided": ({"x": torch.zeros(16, 2).mT}, "x has stride 2 in its last dimension"),
    "weight_size": ({"weight": torch.zeros(8, 4)}, r"weight has shape \[8, 4\]; accepted: \[out_size, 16\]"),
    "weight_dtype": ({"weight": torch.zeros(8, 16).half()}, "weight has dtype torch.float16"),
    "weight_transposed": ({"weight": torch.zeros(16, 8).mT}, "weight has stride 8 in its last dimension"),
    "weight_empty": ({"weight": torch.zeros(0, 16)}, "accepted: no dimension of 0"),
    "bias_size": ({"bias": torch.zeros(16)}, r"bias has shape \[16\]; accepted: \[8\]"),
    "device": ({"bias": torch.zeros(8, device="meta")}, "bias is on meta; accepted: cpu"),
}


@pytest.mark.parametrize("bad", BAD_ARGUMENTS)
def test_refuses(bad: str) -> None:
    changed, message = BAD_ARGUMENTS[bad]
    good = {"x": torch.zeros(2, 16), "weight": torch.zeros(8, 16), "bias": torch.zeros(8)}
    with pytest.raises(ValueError, match=message):
        invariant_linear(**{**good, **changed})


@pytest.mark.parametrize(
    ("in_size", "out_size", "dtype"),
    [
        (4096, 6144, torch.bfloat16),
        (4096, 28672, torch.float16),
        (200, 70, torch.bfloat16),
        (2304, 300, torch.float32),
    ],
)
def test_compiles_for_hopper(
    monkeypatch: pytest.MonkeyPatch, in_size: int, out_size: int, dtype: torch.dtype
) -> None:
    recorder = record(monkeypatch, kernel, "_invariant_linear_kernel")
    x, weight = torch.zeros(3, in_size, dtype=dtype), torch.empty(out_size, in_size, dtype=dtype)
    kernel.invariant_linear(x, weight, torch.zeros(out_size, dtype=dtype))
    assert_runs_on_hopper(recorder)
    for compiled in recorder.compile():
        assert ("wgmma" in compiled.asm["ptx"]) == (dtype != torch.float32)
        assert "tf32" not in compiled.asm["ptx"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("in_size", "out_size"), [(4096, 6144), (4096, 28672), (14336, 4096), (200, 70)])
def test_compiled_kernel_multiplies_and_gives_a_row_the_same_bits(
    in_size: int, out_size: int, dtype: torch.dtype
) -> None:
    x, weight, bias = (tensor.cuda() for tensor in make(300, in_size, out_size, dtype))
    together = invariant_linear(x, weight, bias)
    assert_is_product(together, x, weight, bias)
    for begin, end in ((0, 1), (299, 300), (5, 21), (100, 229)):
        assert same_bits(invariant_linear(x[begin:end], weight, bias).cpu(), together[begin:end].cpu())
    order = torch.randperm(300, device="cuda")
    assert same_bits(invariant_linear(x[order], weight, bias).cpu(), together[order].cpu())
