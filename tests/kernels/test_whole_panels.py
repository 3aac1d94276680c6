"""Products with weights of 8 and 4 bits are those of what these stand for, in any number of rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.native import ops
from kernels.native.panels import Panels, fits, whole_to_panels
from tests.kernels.tensors import randn, same_bits

ROWS = [1, 2, 3, 5, 7, 9, 12, 13, 25, 40, 300]


def made(
    bits: int, groups: int, sizes: tuple[int, int], *, has_zeros: bool, seed: int = 0
) -> tuple[Panels, Tensor]:
    """Return panels of random numbers, and the weight [out, in] that they stand for, in float64."""
    outputs, inputs = sizes
    generator = torch.Generator().manual_seed(seed)
    least, most = (-128, 128) if bits == 8 else (0, 16)
    numbers = torch.randint(least, most, sizes, generator=generator)
    scales = torch.rand((outputs, groups), generator=generator) + 0.01
    zeros = (
        torch.randint(max(least, -100), most, (outputs, groups), generator=generator) if has_zeros else None
    )
    middle = torch.tensor(8 if bits == 4 else 0)
    above = numbers.view(outputs, groups, -1) - (middle if zeros is None else zeros[..., None])
    weight = (above.double() * scales.double()[..., None]).view(outputs, inputs)
    stored = numbers.to(torch.int8)
    if bits == 4:
        stored = (numbers[:, 0::2] | (numbers[:, 1::2] << 4)).to(torch.uint8)
    return whole_to_panels(stored, scales, zeros, bits=bits, inputs=inputs), weight


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("has_zeros", [False, True], ids=["middle", "zeros"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("bits", "groups", "inputs"),
    [(8, 1, 64), (8, 1, 672), (8, 21, 672), (8, 3, 96), (4, 1, 64), (4, 11, 704), (4, 21, 672), (4, 7, 896)],
)
def test_products_are_those_of_the_weights(
    bits: int, groups: int, inputs: int, dtype: torch.dtype, has_zeros: bool
) -> None:
    if not fits(inputs, dtype):
        pytest.skip("this library does not multiply the dtype")
    panels, weight = made(bits, groups, (75, inputs), has_zeros=has_zeros)
    # A scale for each output is that of the sums; others are in the weights, which are rounded to the dtype.
    rounded = weight if panels.stored == 1 else weight.float().to(dtype).double()
    bias = randn(75, dtype=dtype, seed=1)
    for count in ROWS:
        rows = randn(count, inputs, dtype=dtype, seed=count)
        want = rows.double() @ rounded.t() + bias.double()
        error = (ops.linear(rows, panels, bias).double() - want).abs().max() / want.abs().max()
        assert error < (2**-8 if dtype == torch.bfloat16 else 2e-6)


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("bits", "groups"), [(8, 1), (8, 17), (4, 17)])
def test_a_row_has_its_bits_alone_and_among_others(bits: int, groups: int, dtype: torch.dtype) -> None:
    if not fits(544, dtype):
        pytest.skip("this library does not multiply the dtype")
    panels, _ = made(bits, groups, (75, 544), has_zeros=groups > 1)
    rows = randn(300, 544, dtype=dtype, seed=2)
    together = ops.linear(rows, panels, None)
    for size in (1, 4, 6, 11, 13):
        assert same_bits(torch.cat([ops.linear(part, panels, None) for part in rows.split(size)]), together)


@settings(deadline=None)
@given(
    bits=st.sampled_from([8, 4]),
    outputs=st.integers(1, 140),
    groups=st.integers(1, 6),
    group=st.integers(1, 40).map(lambda pairs: 2 * pairs),
    rows=st.integers(0, 30),
    has_zeros=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_size_fits(
    bits: int, outputs: int, groups: int, group: int, rows: int, has_zeros: bool, seed: int
) -> None:
    inputs = groups * group
    if not fits(inputs, torch.float32):
        pytest.skip("no library was built")
    panels, weight = made(bits, groups, (outputs, inputs), has_zeros=has_zeros, seed=seed)
    x = randn(rows, inputs, seed=seed)
    want = x.double() @ weight.t()
    torch.testing.assert_close(ops.linear(x, panels, None).double(), want, rtol=1e-4, atol=1e-2)
