"""fp8 KV: each number is rounded to the nearest, everywhere to the same bytes, and read as what it is."""

import pytest
import torch
from torch import Tensor

from kernels.paged_attention.arguments import Softmax
from kernels.paged_decode import paged_decode
from kernels.store_kv import quantise, store_kv
from tests.kernels.interpreter import Interpreter
from tests.kernels.quantised_cases import poisoned_pool, views_of

E4M3 = torch.float8_e4m3fn
LIMIT = 448.0
NUMBERS = torch.arange(127, dtype=torch.uint8).view(E4M3).float()
"""All that are not negative; their indexes are their bytes."""
SIGN = 0x80


def boundary_rows() -> Tensor:
    """[6, 1, 256] float32, whose scales are 1: each number of e4m3, what lies halfway between two of them,
    the next float32 on either side of both, and the negatives of all.
    """
    halfway = (NUMBERS[1:] + NUMBERS[:-1]) / 2
    exact = torch.cat((NUMBERS, halfway))
    infinity = torch.tensor(torch.inf)
    near = torch.cat((exact, exact.nextafter(infinity), exact.nextafter(-infinity))).clamp(max=LIMIT)
    rows = torch.zeros(6 * 255)
    rows[: 2 * near.numel()] = torch.cat((near, -near))
    return torch.cat((torch.full((6, 1, 1), LIMIT), rows.view(6, 1, 255)), dim=-1)


def nearest(rows: Tensor) -> Tensor:
    """The bytes of e4m3 by its definition: the nearest number, of two the one whose byte is even."""
    distances = (rows.double().abs()[..., None] - NUMBERS.double()).abs()
    is_nearest = distances == distances.amin(-1, keepdim=True)
    is_even = torch.arange(127) % 2 == 0
    found = (is_nearest * (1 + is_even.int())).argmax(-1)
    return (found + SIGN * rows.signbit()).byte()


def test_every_boundary_is_rounded_to_the_nearest() -> None:
    rows = boundary_rows()
    values, scales = quantise(rows, E4M3)
    assert (scales == 1).all()
    assert torch.equal(values.view(torch.uint8), nearest(rows))


def test_the_kernel_rounds_every_boundary_alike(interpreter: Interpreter) -> None:
    rows, slots = boundary_rows(), torch.arange(6)
    layer, scales = views_of(poisoned_pool(1, 6, 1, 256, stored=E4M3))
    _, after = interpreter.run_and_return_args("store_kv", rows, -rows, layer, slots, scales)
    stored = after[2].view(torch.uint8)
    assert torch.equal(stored[0, 0], nearest(rows))
    assert torch.equal(stored[0, 1], nearest(-rows))


@pytest.mark.gpu
def test_the_compiled_kernel_rounds_every_boundary_alike() -> None:
    rows, slots = boundary_rows().cuda(), torch.arange(6, device="cuda")
    layer, scales = views_of(poisoned_pool(1, 6, 1, 256, "cuda", E4M3))
    store_kv(rows, -rows, layer, slots, scales)
    stored = layer.cpu().view(torch.uint8)
    assert torch.equal(stored[0, 0], nearest(rows.cpu()))
    assert torch.equal(stored[0, 1], nearest(-rows.cpu()))


def every_number(device: str = "cpu") -> tuple[Tensor, Tensor]:
    """A block of one token whose value is all of them, negative ones after the others, and its scales, 1."""
    layer, scales = views_of(poisoned_pool(1, 1, 1, 254, device, E4M3))
    layer.copy_(torch.cat((NUMBERS, -NUMBERS)))
    scales.fill_(1.0)
    return layer, scales


def of_one_token(dtype: torch.dtype, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    """Query, block table and length of a context that is one token: its value comes out as it is."""
    table, length = torch.tensor([[0]]).int(), torch.tensor([1]).int()
    return torch.zeros(1, 1, 254, dtype=dtype, device=device), table.to(device), length.to(device)


DTYPES = [torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_number_is_read_as_it_is(interpreter: Interpreter, dtype: torch.dtype) -> None:
    layer, scales = every_number()
    query, table, length = of_one_token(dtype)
    got = interpreter.run("paged_decode", query, layer, table, length, Softmax(1.0), scales)
    assert torch.equal(got.view(-1), torch.cat((NUMBERS, -NUMBERS)).to(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled_every_number_is_read_as_it_is(dtype: torch.dtype) -> None:
    layer, scales = every_number("cuda")
    query, table, length = of_one_token(dtype, "cuda")
    got = paged_decode(query, layer, table, length, Softmax(1.0), scales)
    assert torch.equal(got.cpu().view(-1), torch.cat((NUMBERS, -NUMBERS)).to(dtype))
