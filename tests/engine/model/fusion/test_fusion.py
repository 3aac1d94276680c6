"""Fused models against what they were made of, and what notices a fusion that went wrong."""

from __future__ import annotations

import random
import re
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.execution.model_runner import ModelRunner
from engine.kv.kv_pool import KVPool
from engine.model.attention.attention import LayerOrder
from engine.model.fusion import modules, replacing, structure
from engine.model.fusion.probe import check_same
from engine.model.model import Model, load_model
from engine.model.quantised.quantisation import Quantisation
from engine.model.quantised.whole_linears import Int8Linear
from kernels.native.build import Target
from kernels.native.loader import library
from kernels.paged_attention.arguments import Softmax
from kernels.rope_store_kv import HeadNorms
from tests import model_zoo
from tests.engine.ragged import (
    Piece,
    generate_greedily,
    make_batch,
    moved,
    poisoned_pool,
    shuffled_tables,
)
from tests.kernels.tensors import same_bits

CPU = torch.device("cpu")
NUM_TOKENS = 4
NUM_LAYERS = 4
EXPERTS = {"Attention": 4, "DecoderLayer": 4, "RMSNorm": 9, "RotaryEmbedding": 1}
GATED = EXPERTS | {"MLP": 4}
HEAD_NORMS = 8
FUSED = {
    "llama": GATED,
    "llama_tied": GATED,
    "llama_rope": GATED,
    "mistral": GATED,
    "qwen2": GATED,
    "qwen2_window": GATED,
    "qwen3": GATED | {"RMSNorm": 9 + HEAD_NORMS},
    "gemma2": GATED | {"RMSNorm": 17},
    "gemma3_text": GATED | {"RMSNorm": 17 + HEAD_NORMS},
    "phi3": GATED,
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS | {"RMSNorm": 9 + HEAD_NORMS},
    "gpt_oss": EXPERTS,
    "granite": GATED,
}
"""The modules replaced in each; the other cases of the zoo keep theirs."""
KINDS = ("Attention", "DecoderLayer", "MLP", "RMSNorm", "Experts", "TopKRouter", "RotaryEmbedding")


def load(directory: Path, dtype: torch.dtype = torch.float64, *, fused: bool) -> Model:
    return load_model(directory, dtype, CPU, fused=fused)


def generate(model: Model, *, as_on_a_gpu: bool = False) -> list[tuple[list[int], Tensor]]:
    """Three sequences that join one after another: chunks and decodes mixed, then decodes alone."""
    rng = random.Random(2)
    prompts = [[rng.randrange(3, model_zoo.VOCAB_SIZE) for _ in range(length)] for length in (11, 23, 5)]
    runner = ModelRunner(model, poisoned(model))
    if as_on_a_gpu:
        runner._rows = None
    return generate_greedily(runner, prompts, NUM_TOKENS, chunk=8)


def poisoned(model: Model) -> KVPool:
    if model.stored is None:
        return poisoned_pool(model, 4, 32)
    pool = KVPool(model.block_layout(4), 32)
    pool.tensor.fill_(255)  # every scale a NaN
    return pool


def make_norms_exact(module: nn.Module) -> None:
    """In transformers they round to float32, whatever the model's dtype; the fused ones do not."""
    for norm in module.modules():
        if type(norm).__name__.endswith("RMSNorm"):
            norm.forward = partial(exact_norm, norm)


def exact_norm(norm: Any, hidden: Tensor) -> Tensor:
    unit_offset = hasattr(norm, "eps")
    eps = norm.eps if unit_offset else norm.variance_epsilon
    root = torch.sqrt(hidden.square().mean(dim=-1, keepdim=True) + eps)
    weight: Tensor = norm.weight + 1 if unit_offset else norm.weight
    return hidden / root * weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_family_gives_the_logits_of_the_stock_one(
    name: str, dtype: torch.dtype, zoo: Callable[[str], Path]
) -> None:
    fused, stock = load(zoo(name), dtype, fused=True), load(zoo(name), dtype, fused=False)
    assert replaced(fused) == dict.fromkeys(KINDS, 0) | FUSED[name]
    if dtype == torch.float64:
        make_norms_exact(stock.module)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    for (tokens, logits), (want_tokens, want) in zip(generate(fused), generate(stock), strict=True):
        assert tokens == want_tokens
        torch.testing.assert_close(logits, want, rtol=0, atol=tolerance)


def replaced(model: Model) -> dict[str, int]:
    """Modules by what their classes' names end with."""
    counts = model.fusion.replaced.items()
    return {kind: sum(count for name, count in counts if name.endswith(kind)) for kind in KINDS}


@pytest.mark.parametrize("name", FUSED)
def test_layers_without_experts_run_in_one_native_call(
    name: str, zoo: Callable[[str], Path], target: Target
) -> None:
    fused, stock = load(zoo(name), torch.float32, fused=True), load(zoo(name), torch.float32, fused=False)
    assert fused.fusion.is_native == (FUSED[name].get("MLP", 0) > 0)
    for (tokens, logits), (want_tokens, want) in zip(generate(fused), generate(stock), strict=True):
        assert tokens == want_tokens
        torch.testing.assert_close(logits, want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite"])
def test_logits_do_not_depend_on_which_others_are_wanted(
    name: str, zoo: Callable[[str], Path], target: Target
) -> None:
    """The last native layer computes little more than what the logits need, and all keys and values."""
    model = load(zoo(name), torch.float32, fused=True)
    tables, num_blocks = shuffled_tables([9, 1, 70, 3], 4, seed=1)
    tokens = [list(range(3, 3 + len(table) * 4)) for table in tables]
    lengths = (9, 1, 70, 3)
    batch = make_batch(
        [Piece(0, own[:length], table) for own, length, table in zip(tokens, lengths, tables, strict=True)], 4
    )

    def forward(rows: list[int]) -> tuple[Tensor, Tensor]:
        pool = poisoned_pool(model, 4, num_blocks)
        wanted = replace(batch, logit_rows=torch.tensor(rows, dtype=torch.int64))
        return ModelRunner(model, pool).forward(wanted), pool.tensor

    logits, kv = forward(list(range(sum(lengths))))
    for rows in ([], [82], [8, 9, 79, 82], [0, 40, 41, 80], [10, 11]):
        some, same_kv = forward(rows)
        assert same_bits(some, logits[rows])
        assert same_bits(same_kv, kv)


@pytest.mark.parametrize("name", sorted(set(model_zoo.CASES) - set(FUSED)))
def test_a_family_that_fits_nothing_keeps_its_modules(name: str, zoo: Callable[[str], Path]) -> None:
    model = load(zoo(name), fused=True)
    assert not model.is_fused
    assert re.match(r"nothing replaced: (its parts are not|a layer's parts are) ", str(model.fusion))
    assert not any(isinstance(module, modules.Layer) for module in model.module.modules())


@pytest.mark.parametrize("quantisation", [Quantisation.INT8, Quantisation.KV8])
def test_a_quantised_model_is_fused_as_it_is(
    quantisation: Quantisation, zoo: Callable[[str], Path], without_native: None
) -> None:
    quantised = partial(load_model, zoo("qwen3"), torch.float32, CPU, quantisation=quantisation)
    fused, stock = quantised(fused=True), quantised()
    decoder: Any = fused.module.model
    kinds = {type(layer.attention.qkv) for layer in decoder.layers.layers}
    assert kinds == {Int8Linear if quantisation.weights else nn.Linear}
    want = generate(stock, as_on_a_gpu=True)
    # A number halfway between two steps of 8-bit KV may be rounded to either.
    tolerance = 5e-3 if quantisation.kv else 1e-4
    for (tokens, logits), (want_tokens, want_logits) in zip(generate(fused), want, strict=True):
        assert tokens == want_tokens
        torch.testing.assert_close(logits, want_logits, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "quantisation", [Quantisation.INT8, Quantisation.INT4, Quantisation.KV8, Quantisation.KVFP8]
)
def test_native_layers_read_fewer_bits_but_no_fp8(
    quantisation: Quantisation, zoo: Callable[[str], Path]
) -> None:
    model = load_model(zoo("qwen3"), torch.float32, CPU, quantisation=quantisation, fused=True)
    assert model.is_fused
    assert model.fusion.is_native == (quantisation is not Quantisation.KVFP8 and library() is not None)
    assert len(generate(model)) == 3


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "gemma3_text", "mixtral", "gpt_oss", "granite"])
def test_in_bfloat16_a_fused_family_passes_its_own_check(name: str, zoo: Callable[[str], Path]) -> None:
    assert load(zoo(name), torch.bfloat16, fused=True).is_fused


def fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes one mistake in what is fused."""
    if name == "merged in the wrong order":
        monkeypatch.setattr(structure, "merged", lambda products: modules.merged(products[::-1]))
    elif name == "head norms left out":
        monkeypatch.setattr(structure, "HeadNorms", lambda *_: HeadNorms())
    elif name == "factor left out":
        monkeypatch.setattr(structure, "Scale", lambda _: nn.Identity())
    elif name == "norms without their offset":
        norm = partial(modules.Norm, unit_offset=False)
        monkeypatch.setattr(structure, "Norm", lambda weight, eps, **_: norm(weight, eps))
    elif name == "embeddings as they are":
        decoder = modules.Decoder
        monkeypatch.setattr(replacing, "Decoder", lambda embed, _, *rest: decoder(embed, 1.0, *rest))
    else:
        assert name == "layers swapped"
        monkeypatch.setattr(replacing, "Decoder", lambda *parts: swapped(modules.Decoder(*parts)))


def swapped(decoder: modules.Decoder) -> modules.Decoder:
    layers: Any = decoder.layers.layers
    layers[1].mlp, layers[2].mlp = layers[2].mlp, layers[1].mlp
    return decoder


@pytest.mark.parametrize(
    ("name", "mistake", "part"),
    [
        ("llama", "merged in the wrong order", "layer 0"),
        ("phi3", "layers swapped", "the model's output"),
        ("qwen3", "head norms left out", "layer 0"),
        ("gemma2", "norms without their offset", "layer 0"),
        ("granite", "factor left out", "layer 0"),
        ("granite", "embeddings as they are", "the embedding"),
    ],
)
def test_a_wrong_fusion_is_noticed_and_undone_even_in_bfloat16(
    name: str,
    mistake: str,
    part: str,
    zoo: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(mistake, monkeypatch)
    model = load(zoo(name), torch.bfloat16, fused=True)
    assert not model.is_fused
    assert f"{part} differs by" in str(model.fusion)
    assert not any(isinstance(module, modules.Layer) for module in model.module.modules())


def test_no_more_than_one_layer_is_in_memory_twice(
    zoo: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stock: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def noting(products: list[nn.Linear]) -> modules.Product:
        stock.extend(weakref.ref(product.weight) for product in products)
        return modules.merged(products)

    def counting(*args: Any) -> None:
        alive.append(sum(weight() is not None for weight in stock))
        check_same(*args)

    monkeypatch.setattr(structure, "merged", noting)
    monkeypatch.setattr(replacing, "check_same", counting)
    load(zoo("llama"), fused=True)
    assert alive == [5] * NUM_LAYERS + [0] * 2


class StepWithoutPool:
    """Attends to nothing; what it gives is on the query's device."""

    def __init__(self) -> None:
        self.order = LayerOrder()

    def rotate_and_attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: object,
        norms: object,
        softmax: Softmax,
    ) -> Tensor:
        self.order.enter(layer)
        return torch.empty_like(query)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "granite"])
def test_a_step_reads_nothing_back_and_makes_nothing_elsewhere(
    name: str, zoo: Callable[[str], Path], without_native: None
) -> None:
    """A CUDA graph could hold it: a device without numbers refuses to give one, and to mix devices."""
    model = load(zoo(name), torch.float32, fused=True)
    model.module.to("meta")
    tokens = torch.zeros(5, dtype=torch.int64, device="meta")
    step: Any = StepWithoutPool()
    logits = model.forward(tokens, tokens, tokens[:2], step)
    assert logits.shape == (2, model_zoo.VOCAB_SIZE)
    assert logits.is_meta
    assert step.order.next_layer == NUM_LAYERS


def test_a_deterministic_model_is_not_fused_on_a_gpu(zoo: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match=r"fused is True with deterministic on cuda; accepted: on a CPU"):
        load_model(zoo("llama"), torch.float32, torch.device("cuda"), deterministic=True, fused=True)


def test_products_of_different_rows_are_not_merged() -> None:
    products = [nn.Linear(4, 6, bias=False), nn.Linear(4, 2)]
    assert not structure.are_mergeable(products)
    assert structure.are_mergeable(products[:1] * 2)
    whole: Any = modules.merged([nn.Linear(4, 6), nn.Linear(4, 2)])
    assert (whole.weight.shape, whole.bias.shape) == ((8, 4), (8,))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-3), (torch.bfloat16, 0.5)])
@pytest.mark.parametrize("name", FUSED)
def test_on_a_gpu_a_fused_family_gives_the_logits_of_the_stock_one(
    name: str, dtype: torch.dtype, atol: float, zoo: Callable[[str], Path]
) -> None:
    """Compare most rows: in bfloat16 a token may be rounded to another expert."""
    device = torch.device("cuda")
    [table], num_blocks = shuffled_tables([40], 16, seed=1)
    batch = moved(make_batch([Piece(0, list(range(3, 43)), table)], 16), device)
    batch = replace(batch, logit_rows=batch.positions)
    logits = []
    for fused in (True, False):
        model = load_model(zoo(name), dtype, device, fused=fused)
        assert model.is_fused == fused
        pool = KVPool(model.block_layout(16), num_blocks, device)
        logits.append(ModelRunner(model, pool).forward(batch).double())
    furthest = (logits[0] - logits[1]).abs().amax(dim=-1)
    assert float(furthest.median()) <= atol
