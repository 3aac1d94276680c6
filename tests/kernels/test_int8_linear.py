from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.int8_linear import int8_linear, make_counters
from kernels.int8_linear.tiles import choose_num_splits, choose_tiles
from tests.kernels.interpreter import Interpreter

# x is rounded before anybody computes; what is left is the rounding of the sum to x's dtype, and fp32's own.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def make_case(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, a view with NaN on all sides, weight, scale and bias."""
    generator = torch.Generator().manual_seed(rows + outputs + inputs)
    surrounded = torch.full((rows + 2, inputs + 16), torch.nan, dtype=dtype)
    surrounded[1:-1, 8:-8] = torch.randn(rows, inputs, generator=generator)
    weight = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    scale, bias = (torch.rand(outputs, generator=generator) for _ in range(2))
    return surrounded[1:-1, 8:-8], weight, scale.to(dtype) / 100, bias.to(dtype)


def expected(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    out = (x.double() @ weight.double().t()) * scale.double()
    return out if bias is None else out + bias.double()


def assert_close(out: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert out.dtype == dtype
    assert (out.double() - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_wrapper_multiplies_without_a_gpu(dtype: torch.dtype) -> None:
    case = make_case(3, 5, 7, dtype)
    assert_close(int8_linear(*case), expected(*case), dtype)
    assert_close(int8_linear(*case[:3]), expected(*case[:3], None), dtype)


# A decode's few rows, also with inputs and outputs that fill no tile; inputs enough to be split; chunks,
# whose tiles are others; in fp32, groups of tiles of rows, the last of them smaller.
CASES = {
    "one": (1, 64, 128, torch.bfloat16),
    "odd": (3, 70, 131, torch.float16),
    "split": (2, 50, 1100, torch.bfloat16),
    "rows_32": (20, 40, 48, torch.bfloat16),
    "rows_64": (50, 70, 200, torch.float16),
    "chunk": (140, 130, 100, torch.bfloat16),
    "fp32": (1, 33, 31, torch.float32),
    "fp32_split": (5, 32, 300, torch.float32),
    "fp32_groups": (150, 40, 33, torch.float32),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_kernel_multiplies(interpreter: Interpreter, case: tuple[int, int, int, torch.dtype]) -> None:
    arguments = make_case(*case)
    assert_close(interpreter.run("int8_linear", *arguments), expected(*arguments), case[3])


def test_kernel_adds_no_bias_where_there_is_none(interpreter: Interpreter) -> None:
    arguments = make_case(2, 33, 60, torch.float32)[:3]
    assert_close(interpreter.run("int8_linear", *arguments), expected(*arguments, None), torch.float32)


def test_counters_are_zero_after_a_sum_that_was_split(interpreter: Interpreter) -> None:
    arguments = make_case(5, 32, 300, torch.float32)
    counters = make_counters(torch.device("cpu"))
    out, after = interpreter.run_and_return_args("int8_linear", *arguments, counters)
    assert_close(out, expected(*arguments), torch.float32)
    assert not after[4].any()
    counters[0] = 7  # nobody would ever be the last
    assert interpreter.run("int8_linear", *arguments, counters).isnan().all()


@pytest.mark.parametrize("shape", [(0, 5, 7), (3, 0, 7)], ids=str)
def test_nothing_is_no_error(interpreter: Interpreter, shape: tuple[int, int, int]) -> None:
    out = interpreter.run("int8_linear", *make_case(*shape, torch.float32))
    assert out.shape == shape[:2]


@given(st.integers(1, 2000), st.integers(1, 500), st.integers(1, 600))
def test_splits_have_work_and_together_all_of_it(num_tiles: int, num_steps: int, num_programs: int) -> None:
    splits = choose_num_splits(num_tiles, num_steps, num_programs)
    steps = -(-num_steps // splits)
    assert (splits - 1) * steps < num_steps <= splits * steps
    assert splits == 1 or (splits * num_tiles <= num_programs and steps >= 4)


def test_a_decode_of_a_real_model_occupies_an_h200() -> None:
    tiles = choose_tiles(1, 2)
    for outputs, inputs in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
        num_tiles = outputs // tiles.outputs
        splits = choose_num_splits(num_tiles, inputs // tiles.inputs, 2 * 132)
        assert num_tiles * splits >= 132


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"weight": torch.zeros(5, 7)}, "weight has dtype torch.float32; accepted: torch.int8"),
        (
            {"weight": torch.zeros(7, 5, dtype=torch.int8).t()},
            r"weight has strides \[1, 5\]; accepted: a co",
        ),
        ({"x": torch.zeros(3, 8)}, r"x has shape \[3, 8\]; accepted: \[rows, 7\]"),
        ({"x": torch.zeros(7, 3).t()}, "x has stride 3 in its last dimension; accepted: 1"),
        ({"scale": torch.zeros(5, 1)}, r"scale has shape \[5, 1\]; accepted: \[5\]"),
        ({"bias": torch.zeros(5).half()}, "bias has dtype torch.float16; accepted: torch.float32"),
        ({"bias": torch.zeros(5, device="meta")}, "bias is on meta; accepted: cpu"),
    ],
)
def test_a_wrong_argument_is_named(change: dict[str, Any], sentence: str) -> None:
    names = ("x", "weight", "scale", "bias")
    arguments = dict(zip(names, make_case(3, 5, 7, torch.float32), strict=True)) | change
    with pytest.raises(ValueError, match=sentence):
        int8_linear(**arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [1, 7, 16, 33, 100, 300, 1500])
@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 4096), (4096, 14336), (1000, 2072)], ids=str)
def test_compiled_kernel_is_the_reference(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x, weight, scale, bias = (tensor.cuda() for tensor in make_case(rows, outputs, inputs, dtype))
    counters = make_counters(torch.device("cuda"))
    out = int8_linear(x, weight, scale, bias, counters)
    assert_close(out, expected(x, weight, scale, bias), dtype)
    # Whoever comes last: the order is the same.
    assert torch.equal(int8_linear(x, weight, scale, bias, counters), out)
    assert not counters.any()
