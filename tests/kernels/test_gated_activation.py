import pytest
import torch
from torch import Tensor
from transformers.activations import ACT2FN

from kernels.gated_activation import gated_activation, gated_activation_reference
from tests.kernels.interpreter import Interpreter
from tests.kernels.tensors import FLOATS, among_nan, assert_close, randn, same_bits

ACTIVATIONS = ["silu", "gelu_pytorch_tanh", "gelu"]
# Where gelu comes close to 0 it is a difference of two numbers around ½, whose last bits differ.
CANCELLED = 8 * torch.finfo(torch.float32).eps


def make(num_tokens: int, size: int, dtype: torch.dtype) -> Tensor:
    gate_up = 3 * randn(num_tokens, 2 * size, dtype=dtype)
    if num_tokens:
        ends = torch.tensor([-200.0, -20.0, 0.0, 20.0, 200.0])[:size]
        gate_up[0, : len(ends)] = ends.to(dtype)
    return gate_up


def near(got: Tensor, want: Tensor) -> None:
    """The float32 inside differs by a few eps, which can move a result of 16 bits across one rounding."""
    eps = 16 if want.dtype == torch.float32 else 1
    assert_close(got, want, eps=eps, atol=20 * CANCELLED)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_without_a_gpu_it_is_transformers_activation(activation: str, without_native: None) -> None:
    gate_up = make(4, 37, torch.float32)
    gate, up = gate_up.chunk(2, dim=1)
    assert same_bits(gated_activation(gate_up, activation), ACT2FN[activation](gate) * up)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_float64_keeps_its_precision(activation: str) -> None:
    gate, up = make(4, 37, torch.float64).chunk(2, dim=1)
    got = gated_activation(torch.cat((gate, up), dim=1), activation)
    assert same_bits(got, ACT2FN[activation](gate) * up)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [1, 37, 1100])
def test_kernel_activates_and_multiplies(
    interpreter: Interpreter, size: int, activation: str, dtype: torch.dtype
) -> None:
    gate_up = make(2, size, dtype)
    got = interpreter.run("gated_activation", among_nan(gate_up), activation)
    assert got.is_contiguous()
    near(got, gated_activation_reference(gate_up, activation))


def test_no_tokens_give_no_rows(interpreter: Interpreter) -> None:
    assert interpreter.run("gated_activation", randn(0, 16), "silu").shape == (0, 8)


@pytest.mark.parametrize(
    ("gate_up", "activation", "message"),
    [
        (torch.zeros(2, 8).int(), "silu", "gate_up has dtype torch.int32"),
        (torch.zeros(2, 7), "silu", "gate_up has 7 columns; accepted: an even number"),
        (torch.zeros(8), "silu", r"gate_up has shape \[8\]"),
        (torch.zeros(8, 2).mT, "silu", "gate_up has stride 2 in its last dimension"),
        (torch.zeros(2, 8), "relu", "activation is 'relu'; accepted: silu, gelu_pytorch_tanh, gelu"),
    ],
)
def test_refuses(gate_up: Tensor, activation: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gated_activation(gate_up, activation)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [37, 14336])
def test_compiled_kernel_matches(size: int, activation: str, dtype: torch.dtype) -> None:
    gate_up = make(100, size, dtype)
    near(gated_activation(gate_up.cuda(), activation), gated_activation_reference(gate_up, activation))
