"""Unlisted models are served if they compute what transformers does; else the first wrong layer is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.models.gemma import modeling_gemma

from engine.errors import ModelRefused, NotProven
from engine.model.model import Model, load_model
from engine.proof import proving
from engine.proof.proving import Proof, load_proven
from engine.starting import OnProgress, Phase, ignore_progress
from tests import model_zoo
from tests.engine.execution.test_step_loop_models import decodes, expected
from tests.engine.real_engine import Engine

CPU = torch.device("cpu")
Zoo = Callable[[str], Path]


def prove(
    directory: Path,
    dtype: torch.dtype = torch.float64,
    *,
    fused: bool = False,
    deterministic: bool = False,
    free_bytes: Callable[[], int] | None = None,
    on_progress: OnProgress = ignore_progress,
) -> tuple[Model, Proof]:
    load = partial(load_model, directory, dtype, CPU, deterministic=deterministic, unlisted=True)
    return load_proven(load, fused=fused, block_size=4, free_bytes=free_bytes, on_progress=on_progress)


@pytest.mark.parametrize("name", model_zoo.UNLISTED)
def test_a_proven_model_s_tokens_are_those_of_stock_generate(name: str, zoo: Zoo) -> None:
    model, proof = prove(zoo(name))
    assert proof.difference <= 8 * proof.noise
    engine = Engine(model, 7)
    engine.finish(*decodes())
    assert [engine.tokens(handle) for handle in range(5)] == expected(zoo(name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["gemma", "cohere2", "gpt_oss", "llama_tied"])
def test_correct_models_are_proven_in_other_dtypes(name: str, dtype: torch.dtype, zoo: Zoo) -> None:
    _, proof = prove(zoo(name), dtype)
    assert proof.in_float32


def test_noise_that_would_hide_a_wrong_model_is_refused(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "MAX_NOISE", 0.01)
    with pytest.raises(ModelRefused, match=r"change by .* of their length .*; --dtype float32 rounds less"):
        prove(zoo("gemma"), torch.bfloat16, free_bytes=lambda: 1000)
    prove(zoo("gemma"), torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "dtype", "fused", "deterministic"),
    [
        ("gemma", torch.float32, False, True),
        ("gemma", torch.float32, True, False),
        ("gemma", torch.float32, True, True),
        ("olmoe", torch.bfloat16, False, True),
    ],
)
def test_a_model_is_proven_as_it_is_served(
    name: str, dtype: torch.dtype, fused: bool, deterministic: bool, zoo: Zoo
) -> None:
    model, proof = prove(zoo(name), dtype, fused=fused, deterministic=deterministic)
    assert proof.is_fused is model.is_fused
    assert model.is_fused is fused


def scaled_attention(factor: float, layer: int) -> Callable[..., Any]:
    """Return transformers' own attention of Gemma, with a scale that paged attention knows nothing of."""
    own = modeling_gemma.eager_attention_forward

    def attend(module: Any, *args: Any, **kwargs: Any) -> Any:
        if module.layer_idx == layer:
            kwargs["scaling"] = kwargs["scaling"] * factor
        return own(module, *args, **kwargs)

    return attend


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_another_scale_of_attention_is_found_in_its_layer(
    dtype: torch.dtype, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_gemma, "eager_attention_forward", scaled_attention(1.001, 2))
    with pytest.raises(NotProven, match=r"model\.layers\.2 differs .* computed alone; accepted: ") as refusal:
        prove(zoo("gemma"), dtype)
    assert refusal.value.part == "model.layers.2"
    assert refusal.value.difference > refusal.value.tolerance > 0


def test_bfloat16_hides_small_faults_where_float32_does_not_fit(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_gemma, "eager_attention_forward", scaled_attention(1.001, 2))
    _, proof = prove(zoo("gemma"), torch.bfloat16, free_bytes=lambda: 1000)
    assert not proof.in_float32
    monkeypatch.setattr(modeling_gemma, "eager_attention_forward", scaled_attention(1.5, 2))
    with pytest.raises(NotProven) as refusal:
        prove(zoo("gemma"), torch.bfloat16, free_bytes=lambda: 1000)
    assert refusal.value.part == "model.layers.2"


def test_the_weights_are_the_same_after_a_proof_in_float32(zoo: Zoo) -> None:
    model, proof = prove(zoo("gemma"), torch.bfloat16)
    plain = load_model(zoo("gemma"), torch.bfloat16, CPU, unlisted=True)
    assert proof.in_float32
    ours, theirs = model.module.state_dict(), plain.module.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert {name: tensor.dtype for name, tensor in ours.items()} == {
        name: tensor.dtype for name, tensor in theirs.items()
    }


def test_a_wrong_fused_model_is_proven_with_its_own_modules(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so a wrong model is refused by its layer, although fused layers are not watched."""
    monkeypatch.setattr(modeling_gemma, "eager_attention_forward", scaled_attention(1.001, 2))
    with pytest.raises(NotProven) as refusal:
        prove(zoo("gemma"), torch.float32, fused=True)
    assert refusal.value.part == "model.layers.2"


def test_state_that_paging_loses_is_found_where_a_chunk_begins(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer that looks at the token before computes whole prompts right, and no chunk."""
    own = modeling_gemma.GemmaMLP.forward

    def shifted(mlp: modeling_gemma.GemmaMLP, hidden: torch.Tensor) -> torch.Tensor:
        before = functional.pad(hidden, (0, 0, 1, -1))
        output: torch.Tensor = own(mlp, hidden + before)
        return output

    monkeypatch.setattr(modeling_gemma.GemmaMLP, "forward", shifted)
    with pytest.raises(NotProven, match=r"model\.layers\.0 differs .* computed in chunks of 64, 16, 3, 5"):
        prove(zoo("gemma"))


def test_attention_that_is_not_causal_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_zoo.UNLISTED, "bert", model_zoo.Case("bert", {"is_decoder": False}))
    with pytest.raises(NotProven, match=r"bert\.encoder\.layer\.0 differs"):
        prove(model_zoo.build("bert", tmp_path))


def test_code_that_fails_on_blocks_is_refused(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    own = modeling_gemma.GemmaMLP.forward

    def whole_only(mlp: modeling_gemma.GemmaMLP, hidden: torch.Tensor) -> Any:
        if hidden.shape[1] == 1:
            raise RuntimeError("one token is too few")
        return own(mlp, hidden)

    monkeypatch.setattr(modeling_gemma.GemmaMLP, "forward", whole_only)
    with pytest.raises(ModelRefused, match=r"cannot be computed .*one token is too few"):
        prove(zoo("gemma"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_progress_counts_up_to_every_step(dtype: torch.dtype, zoo: Zoo) -> None:
    told: list[tuple[Phase, int, int]] = []
    prove(zoo("gemma"), dtype, on_progress=lambda *progress: told.append(progress))
    counts = [(done, total) for phase, done, total in told if phase is Phase.COMPARING]
    total = counts[0][1]
    assert counts == [(done, total) for done in range(total + 1)]
