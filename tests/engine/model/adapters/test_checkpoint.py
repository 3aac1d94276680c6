"""Adapters that would be computed wrongly are refused by their field, its value and what is accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import AdapterRefused
from engine.model.adapters.checkpoint import read_adapter
from engine.model.model import load_model
from tests.adapters import copy_adapter, write_adapter
from tests.model_zoo import build

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def adapter(base: Path) -> Path:
    return write_adapter(base, base.parent / "adapter", seed=1, targets=("q_proj", "down_proj"))


def rewrite(source: Path, target: Path, change: Mapping[str, torch.Tensor | None]) -> Path:
    """Copy an adapter with some tensors changed, added or removed (None)."""
    copy_adapter(source, target)
    tensors = {**load_file(source / "adapter_model.safetensors"), **change}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, target / "adapter_model.safetensors")
    return target


def refusal(path: Path) -> str:
    with pytest.raises(AdapterRefused) as refused:
        read_adapter("red", path)
    return str(refused.value).removeprefix(f"--lora red={path}: ")


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("peft_type", "LOHA", "peft_type is 'LOHA'; accepted: LORA"),
        ("r", 0, "r is 0; accepted: 1 to 512"),
        ("r", True, "r is True; accepted: 1 to 512"),
        ("lora_alpha", None, "lora_alpha is None; accepted: a number"),
        ("bias", "all", "bias is 'all'; accepted: none"),
        ("use_dora", True, "use_dora is True; accepted: false, empty or absent"),
        ("modules_to_save", ["lm_head"], "modules_to_save is ['lm_head']; accepted: false, empty or absent"),
        ("rank_pattern", {"q_proj": 8}, "rank_pattern is {'q_proj': 8}; accepted: one rank for all layers"),
        ("alpha_pattern", {"q_proj": 8}, "alpha_pattern is {'q_proj': 8}; accepted: one alpha for all"),
        ("target_parameters", ["w"], "target_parameters is ['w']; accepted: false, empty or absent"),
        ("trainable_token_indices", [1], "trainable_token_indices is [1]; accepted: false, empty or absent"),
        ("init_lora_weights", "pissa_niter_4", "init_lora_weights is 'pissa_niter_4'; accepted: a way to"),
        ("target_modules", ["q_proj", "w"], "target_modules has 'w'; accepted: modules that adapter_model"),
        ("r", 3, "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight has shape [4, 96] and type"),
    ],
)
def test_a_config_that_is_not_served_is_refused(
    adapter: Path, tmp_path: Path, field: str, value: object, sentence: str
) -> None:
    found = refusal(copy_adapter(adapter, tmp_path / "changed", **{field: value}))
    assert found.startswith(sentence)


def test_missing_and_broken_files_are_refused_by_name(adapter: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith("adapter_config.json is missing; accepted: what peft's")
    broken = copy_adapter(adapter, tmp_path / "broken")
    (broken / "adapter_model.safetensors").write_bytes(b"\xff" * 64)
    assert refusal(broken).startswith("adapter_model.safetensors cannot be read (")
    (broken / "adapter_config.json").write_text("[]", encoding="utf-8")
    assert refusal(broken) == "adapter_config.json holds a list; accepted: a JSON object"
    (broken / "adapter_config.json").write_text("{", encoding="utf-8")
    assert refusal(broken).startswith("adapter_config.json is not JSON (")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data_offsets": [0, 10**12]}, "is said to be at 0 to 1000000000000 of "),
        ({"data_offsets": [-4, 0]}, "is said to be at -4 to 0 of "),
        ({"shape": [4, 65]}, "is said to be at "),
        ({"dtype": "F4"}, "'F4'"),
        ({"shape": None}, ""),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(
    adapter: Path, tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    wrong = copy_adapter(adapter, tmp_path / "wrong") / "adapter_model.safetensors"
    content = wrong.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    next(field for name, field in header.items() if name.endswith("q_proj.lora_A.weight")).update(change)
    text = json.dumps(header).encode()
    wrong.write_bytes(len(text).to_bytes(8, "little") + text + content[begin:])
    found = refusal(wrong.parent)
    assert found.startswith("adapter_model.safetensors cannot be read (")
    assert sentence in found


def test_a_file_that_was_cut_is_refused(adapter: Path, tmp_path: Path) -> None:
    """So it is with one that is still being copied."""
    cut = copy_adapter(adapter, tmp_path / "cut") / "adapter_model.safetensors"
    whole = cut.read_bytes()
    for length in (0, 5, 100, len(whole) - 1):
        cut.write_bytes(whole[:length])
        assert refusal(cut.parent).startswith("adapter_model.safetensors cannot be read (")


def test_tensors_are_read_as_the_library_reads_them(adapter: Path) -> None:
    tensors = load_file(adapter / "adapter_model.safetensors")
    for layer, (down, up) in read_adapter("red", adapter).matrices.items():
        assert torch.equal(down, tensors[f"base_model.model.{layer}.lora_A.weight"])
        assert torch.equal(up, tensors[f"base_model.model.{layer}.lora_B.weight"])


def test_tensors_of_other_kinds_are_refused_by_name(adapter: Path, tmp_path: Path) -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    extra = rewrite(adapter, tmp_path / "extra", {f"{name}.lora_magnitude_vector": torch.ones(64)})
    assert refusal(extra).startswith(f"adapter_model.safetensors has a tensor {name}.lora_magnitude_vector")
    half = rewrite(adapter, tmp_path / "half", {f"{name}.lora_B.weight": None})
    assert refusal(half).startswith("model.layers.0.self_attn.q_proj.lora_B is missing; accepted: both")


def test_an_adapter_of_another_base_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    name = "base_model.model.model.layers.0.self_attn.{}.lora_{}.weight"
    wide = {name.format("q_proj", "A"): torch.ones(4, 80)}
    with pytest.raises(AdapterRefused, match=r"q_proj maps 80 inputs to 64 outputs; accepted: 64 to 64, as"):
        load(base, rewrite(adapter, tmp_path / "wide", wide))
    absent = {name.format("w", "A"): torch.ones(4, 64), name.format("w", "B"): torch.ones(64, 4)}
    with pytest.raises(AdapterRefused, match=r"layers\.0\.self_attn\.w is no linear layer of the base model"):
        load(base, rewrite(adapter, tmp_path / "absent", absent))
    head = {f"base_model.model.lm_head.lora_{k}.weight": torch.ones(s) for k, s in HEAD.items()}
    with pytest.raises(AdapterRefused, match=r"lm_head is no linear layer of the base model that can be"):
        load(base, rewrite(adapter, tmp_path / "head", head))


HEAD = {"A": (4, 64), "B": (97, 4)}


def load(base: Path, adapter: Path) -> None:
    load_model(base, torch.float64, CPU, adapters=[read_adapter("red", adapter)])


def test_a_deterministic_model_refuses_adapters(base: Path, adapter: Path) -> None:
    files = [read_adapter("red", adapter)]
    with pytest.raises(ValueError, match="deterministic with adapters; accepted: one of the two"):
        load_model(base, torch.float32, CPU, deterministic=True, adapters=files)


def test_the_digest_is_of_weights_and_config(adapter: Path, tmp_path: Path) -> None:
    same = copy_adapter(adapter, tmp_path / "same", lora_alpha=8)
    scaled = copy_adapter(adapter, tmp_path / "scaled", lora_alpha=16)
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = next(iter(tensors))
    other = rewrite(adapter, tmp_path / "other", {name: tensors[name] + 1})
    digests = [read_adapter("red", path).digest for path in (adapter, same, scaled, other)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
