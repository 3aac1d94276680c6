"""Packed layers compute what the layers they replace do."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from engine.model.fusion.cpu_layers import PackedLinear, PanelEmbedding, PanelLinear, pack_linears, packs
from kernels.native.panels import fits, to_panels
from tests.kernels.tensors import randn, same_bits

ONEDNN, NATIVE = "oneDNN", "native"
Make = Callable[[Tensor, Tensor | None], nn.Module]


def in_panels(weight: Tensor, bias: Tensor | None) -> nn.Module:
    return PanelLinear(to_panels(weight), bias)


def maker(kind: str, inputs: int, dtype: torch.dtype) -> Make:
    """Return what makes a packed layer; skip where this processor has none of the kind."""
    if kind == NATIVE:
        if not fits(inputs, dtype):
            pytest.skip("native ops do not multiply this here")
        return in_panels
    if not packs(torch.empty(1, 1, dtype=dtype)):
        pytest.skip("oneDNN packs nothing here")
    return PackedLinear


class Tied(nn.Module):
    """A model whose last layer shares its weight with the first."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32, dtype=dtype)
        self.layer = nn.Linear(32, 32, dtype=dtype)
        self.head = nn.Linear(32, 50, bias=False, dtype=dtype)
        self.head.weight = self.embed.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.embed(token_ids)))
        return logits


@pytest.mark.parametrize("shape", [(0,), (1,), (33,), (1, 7), (1, 0), (450,)], ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(
    ("kind", "dtype", "sizes"),
    [
        (ONEDNN, torch.bfloat16, (37, 50)),
        (ONEDNN, torch.bfloat16, (256, 1000)),
        (NATIVE, torch.bfloat16, (32, 50)),
        (NATIVE, torch.bfloat16, (1056, 100)),
        (NATIVE, torch.float32, (37, 50)),
        (NATIVE, torch.float32, (1056, 100)),
    ],
    ids=str,
)
def test_products_equal_those_of_the_plain_layer(
    kind: str, dtype: torch.dtype, sizes: tuple[int, int], biased: bool, shape: tuple[int, ...]
) -> None:
    inputs, outputs = sizes
    make = maker(kind, inputs, dtype)
    weight = randn(outputs, inputs, dtype=dtype)
    bias = randn(outputs, dtype=dtype, seed=1) if biased else None
    rows = randn(*shape, inputs + 3, dtype=dtype, seed=2)[..., :inputs]
    got = make(weight, bias)(rows)
    exact = rows.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert got.dtype == dtype
    assert got.shape == exact.shape
    assert got.is_contiguous()
    # One rounding to bfloat16, and the float32 sums of `inputs` terms.
    rounding = 2**-8 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(got.double(), exact, rtol=rounding, atol=1e-4 * inputs**0.5)


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inputs", [64, 544, 1120])
def test_a_row_in_panels_has_its_bits_alone_and_among_others(inputs: int, dtype: torch.dtype) -> None:
    layer = maker(NATIVE, inputs, dtype)(randn(75, inputs, dtype=dtype), randn(75, dtype=dtype, seed=1))
    rows = randn(210, inputs, dtype=dtype, seed=2)
    together = layer(rows)
    assert same_bits(torch.cat([layer(row[None]) for row in rows]), together)
    assert same_bits(torch.cat([layer(part) for part in rows.split(31)]), together)


def test_a_broken_number_stays_in_its_row() -> None:
    layer = maker(NATIVE, 64, torch.float32)(randn(75, 64), None)
    rows = randn(40, 64, seed=1)
    rows[7, 3] = torch.nan
    assert layer(rows).isnan().any(dim=1).nonzero().tolist() == [[7]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_shared_weight_is_packed_once(dtype: torch.dtype) -> None:
    maker(NATIVE, 32, dtype)
    model, tokens = Tied(dtype), torch.tensor([[0, 15, 16], [48, 49, 15]])
    want = model(tokens)
    pack_linears(model)
    kinds = {name: type(module) for name, module in model.named_children()}
    assert kinds == {"embed": PanelEmbedding, "layer": PanelLinear, "head": PanelLinear}
    assert model.embed.panels is model.head.panels
    assert list(model.parameters()) == []
    torch.testing.assert_close(model(tokens), want, rtol=1e-2, atol=1e-2)


def test_what_cannot_be_packed_stays_as_it_is(without_native: None) -> None:
    model = Tied(torch.bfloat16)
    model.wide = nn.Linear(32, 32)
    pack_linears(model)
    packed = PackedLinear if packs(model.head.weight) else nn.Linear
    kinds = {name: type(module) for name, module in model.named_children()}
    assert kinds == {"embed": nn.Embedding, "layer": packed, "head": nn.Linear, "wide": nn.Linear}
    assert model.head.weight is model.embed.weight


def test_a_weight_that_oneDNN_packed_is_not_kept_twice(without_native: None) -> None:
    if not packs(torch.empty(1, 1, dtype=torch.bfloat16)):
        pytest.skip("oneDNN packs nothing here")
    model = Tied(torch.bfloat16)
    pack_linears(model)
    assert [name for name, _ in model.layer.named_parameters()] == []
    assert [name for name, _ in model.layer.named_buffers()] == ["bias"]
