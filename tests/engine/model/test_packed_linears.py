"""Packed layers compute what the layers they replace do."""

import pytest
import torch
from torch import nn

from engine.model.packed_linears import PackedLinear, pack_linears, packable
from tests.kernels.tensors import randn

pytestmark = pytest.mark.skipif(
    not packable(nn.Sequential(nn.Linear(2, 2, dtype=torch.bfloat16))), reason="oneDNN packs nothing here"
)


class Tied(nn.Module):
    """A model whose last layer shares its weight with the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32, dtype=torch.bfloat16)
        self.layer = nn.Linear(32, 32, dtype=torch.bfloat16)
        self.head = nn.Linear(32, 50, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("shape", [(0,), (1,), (33,), (1, 7), (1, 0)], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("sizes", [(37, 50), (256, 1000)], ids=str)
def test_products_equal_those_of_the_plain_layer(
    sizes: tuple[int, int], biased: bool, shape: tuple[int, ...]
) -> None:
    inputs, outputs = sizes
    weight = randn(outputs, inputs, dtype=torch.bfloat16)
    bias = randn(outputs, dtype=torch.bfloat16, seed=1) if biased else None
    rows = randn(*shape, inputs + 3, dtype=torch.bfloat16, seed=2)[..., :inputs]
    got = PackedLinear(weight, bias)(rows)
    exact = rows.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert got.dtype == torch.bfloat16
    assert got.shape == exact.shape
    assert got.is_contiguous()
    # One rounding to bfloat16, and the float32 sums of `inputs` terms.
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-4 * inputs**0.5)


def test_a_shared_weight_and_other_types_stay_as_they_are() -> None:
    model = Tied()
    model.wide = nn.Linear(32, 32)
    pack_linears(model)
    kinds = {name: type(module) for name, module in model.named_children()}
    assert kinds == {"embed": nn.Embedding, "layer": PackedLinear, "head": nn.Linear, "wide": nn.Linear}
    assert model.head.weight is model.embed.weight


def test_a_packed_weight_is_not_kept_twice() -> None:
    model = Tied()
    pack_linears(model)
    assert [name for name, _ in model.layer.named_parameters()] == []
    assert [name for name, _ in model.layer.named_buffers()] == ["bias"]
