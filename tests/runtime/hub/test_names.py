"""Which values of --model are models of the hub, and which are folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.hub.names import HubModel, hub_model, model_path
from runtime.hub.refusals import HubRefused

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("Qwen/Qwen3-0.6B", HubModel("Qwen/Qwen3-0.6B", "main")),
        ("meta-llama/Llama-3.1-8B@v1.0", HubModel("meta-llama/Llama-3.1-8B", "v1.0")),
        ("a/b_c@refs/pr/3", HubModel("a/b_c", "refs/pr/3")),
        (f"a/b@{COMMIT}", HubModel("a/b", COMMIT)),
    ],
)
def test_a_name_with_one_slash_is_a_model_of_the_hub(text: str, model: HubModel) -> None:
    assert hub_model(model_path(text)) == model


@pytest.mark.parametrize(
    "text",
    [
        "llama",
        "/models/llama",
        "./models/llama",
        "../models/llama",
        "models/llama/8b",
        "~/models/llama",
        "a/b..c",
        "a/b@x/../y",
        "a/-b",
        "a/b c",
        "a/ü",
        "a/b@",
        ".",
        "",
    ],
)
def test_everything_else_is_a_folder(text: str) -> None:
    assert hub_model(model_path(text)) is None


def test_a_folder_that_exists_is_no_model_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "Qwen3-0.6B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub_model(model_path("Qwen/Qwen3-0.6B")) is None


def test_only_a_commit_is_pinned() -> None:
    assert HubModel("a/b", COMMIT).is_pinned
    assert not HubModel("a/b", COMMIT[:-1]).is_pinned
    assert not HubModel("a/b").is_pinned


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a/b:b-Q4_K.gguf", "GGUF files are not served"),
        ("a/b@main:x.GGUF", "GGUF files are not served"),
        ("a/b:model.safetensors", "a single file of a model is not served"),
    ],
)
def test_a_single_file_is_refused(text: str, what: str) -> None:
    with pytest.raises(HubRefused) as refused:
        hub_model(model_path(text))
    assert what in str(refused.value)
    assert "accepted: the folder of a checkpoint, or a model of the hub" in str(refused.value)
