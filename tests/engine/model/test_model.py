from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.errors import ModelRefused
from engine.model import allow_list
from engine.model.fingerprint import fingerprint
from engine.model.model import ModelFacts, load_model
from engine.model.quantised.quantisation import Quantisation
from tests import model_zoo

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_zoo.build("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def llama(original: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(original, tmp_path / "llama"))


def load(directory: Path) -> ModelFacts:
    return load_model(directory, torch.float64, CPU).facts


def test_the_facts_are_the_config_s(original: Path) -> None:
    assert load(original) == ModelFacts(
        directory=original,
        architecture="llama",
        vocab_size=97,
        max_context=256,
        num_layers=4,
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=16,
        eos_token_ids=(2,),
    )


def test_a_model_without_grouped_heads_tells_its_own(tmp_path: Path) -> None:
    facts = load(model_zoo.build("gpt2", tmp_path))
    assert (facts.num_layers, facts.num_q_heads, facts.num_kv_heads, facts.head_dim) == (4, 4, 4, 16)
    assert facts.max_context == 256


def test_several_end_of_sequence_ids_come_from_the_generation_config(llama: Path) -> None:
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}), encoding="utf-8")
    assert load(llama).eos_token_ids == (2, 5)


def test_the_dtype_is_the_one_asked_for(original: Path) -> None:
    model = load_model(original, torch.bfloat16, CPU)
    assert model.block_layout(16).dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.bfloat16}
    with pytest.raises(ValueError, match=r"dtype is torch.int8; accepted: float32, float64, bfloat16"):
        load_model(original, torch.int8, CPU)


def test_truncated_weights_are_refused(llama: Path) -> None:
    weights = llama / "model.safetensors"
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(ModelRefused, match=rf"model\.safetensors has {size - 1} bytes; accepted: {size}, as"):
        load(llama)
    with weights.open("r+b") as file:
        file.truncate(5)
    with pytest.raises(ModelRefused, match=r"model\.safetensors has no readable header \(.*\); accepted: "):
        load(llama)


def test_bytes_that_are_no_weights_are_refused(llama: Path) -> None:
    (llama / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ModelRefused, match=r"model\.safetensors has no readable header"):
        load(llama)


def test_missing_files_are_refused_by_name(llama: Path) -> None:
    (llama / "tokenizer.json").unlink()
    with pytest.raises(ModelRefused, match=r"tokenizer\.json is missing"):
        load(llama)
    (llama / "model.safetensors").unlink()
    with pytest.raises(
        ModelRefused, match=r"model\.safetensors is missing; accepted: it, or model\.safetens"
    ):
        load(llama)
    index = llama / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}), encoding="utf-8")
    with pytest.raises(ModelRefused, match=r"model-1\.safetensors is missing; accepted: every file that the"):
        load(llama)
    index.write_text("[]", encoding="utf-8")
    with pytest.raises(ModelRefused, match=r"model\.safetensors\.index\.json holds a list"):
        load(llama)


def test_a_weight_that_is_missing_is_not_made_up(llama: Path) -> None:
    weights = load_file(llama / "model.safetensors")
    del weights["model.layers.2.mlp.up_proj.weight"]
    save_file(weights, llama / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelRefused, match=r"the weights have missing_keys \(model\.layers\.2\.mlp\.up_proj\.weight\)"
    ):
        load(llama)


def test_weights_of_another_shape_are_refused(llama: Path) -> None:
    config = json.loads((llama / "config.json").read_text(encoding="utf-8"))
    config["intermediate_size"] = 80
    (llama / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelRefused, match=r"the checkpoint cannot be loaded \(.*mismatch"):
        load(llama)


def test_a_model_that_bypasses_the_attention_function_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = transformers.BloomConfig(vocab_size=97, hidden_size=64, n_layer=2, n_head=4)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model_zoo.save_tokenizer(tmp_path)
    monkeypatch.setattr(allow_list, "ARCHITECTURES", (*allow_list.ARCHITECTURES, "bloom"))
    with pytest.raises(ModelRefused, match="attention does not go through the attention function"):
        load(tmp_path)


def test_the_fingerprint_tells_weights_dtype_and_layout_apart(llama: Path, tmp_path: Path) -> None:
    model = load_model(llama, torch.float64, CPU)
    same = fingerprint(llama, model.block_layout(16))
    elsewhere = Path(shutil.copytree(llama, tmp_path / "elsewhere"))
    assert fingerprint(elsewhere, model.block_layout(16)) == same
    others = {fingerprint(llama, model.block_layout(16), quantisation=choice) for choice in Quantisation}
    assert same in others
    assert len(others) == len(Quantisation)
    assert fingerprint(llama, model.block_layout(4)) != same
    assert fingerprint(llama, load_model(llama, torch.float32, CPU).block_layout(16)) != same
    weights = bytearray((llama / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (llama / "model.safetensors").write_bytes(weights)
    assert fingerprint(llama, model.block_layout(16)) != same


def test_the_fingerprint_leaves_files_alone_that_are_not_read(llama: Path) -> None:
    layout = load_model(llama, torch.float64, CPU).block_layout(16)
    same = fingerprint(llama, layout)
    (llama / "consolidated.safetensors").write_bytes(b"the same weights in another format")
    assert fingerprint(llama, layout) == same


def test_the_fingerprint_samples_a_large_file(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = load_model(llama, torch.float64, CPU).block_layout(16)
    monkeypatch.setattr("engine.model.fingerprint.WHOLE_FILE_BYTES", 0)
    monkeypatch.setattr("engine.model.fingerprint.HEAD_BYTES", 4096)
    monkeypatch.setattr("engine.model.fingerprint.STRETCH_BYTES", 8192)
    monkeypatch.setattr("engine.model.fingerprint.PAGE_BYTES", 64)
    same = fingerprint(llama, layout)
    weights = bytearray((llama / "model.safetensors").read_bytes())
    weights[4096 + 3 * 8192 + 10] ^= 1
    (llama / "model.safetensors").write_bytes(weights)
    assert fingerprint(llama, layout) != same


def test_weights_can_be_drawn_instead_of_read(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    first, again, other = (
        load_model(llama, torch.float32, CPU, random_seed=seed).module.state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(weight, again[name]) for name, weight in first.items())
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])
    with pytest.raises(ModelRefused, match=r"model.safetensors is missing"):
        load(llama)


def test_the_fingerprint_tells_drawn_weights_apart(llama: Path) -> None:
    layout = load_model(llama, torch.float64, CPU).block_layout(16)
    names = {fingerprint(llama, layout, seed) for seed in (None, 0, 1)}
    assert len(names) == 3
    (llama / "model.safetensors").unlink()
    assert fingerprint(llama, layout, 0) in names
