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
        ("a/b-GGUF:b-Q4_K.gguf", HubModel("a/b-GGUF", "main", "b-Q4_K.gguf")),
        ("a/b@v1:4bit/x.GGUF", HubModel("a/b", "v1", "4bit/x.GGUF")),
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
        "models/b-Q4_K.gguf",
        "a/b:../x.gguf",
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
        ("a/b:model.safetensors", "'model.safetensors' is no GGUF file"),
        ("a/b:-x.gguf", "'-x.gguf' is no GGUF file"),
        ("a/b:.gguf", "'.gguf' is no GGUF file"),
    ],
)
def test_a_single_file_that_is_no_gguf_is_refused(text: str, what: str) -> None:
    with pytest.raises(HubRefused) as refused:
        hub_model(model_path(text))
    assert what in str(refused.value)
    assert "accepted: the folder of a checkpoint, a GGUF file, or a model of the hub" in str(refused.value)


def test_callers_name_the_file_but_not_the_revision() -> None:
    assert HubModel("a/b", COMMIT, "x.gguf").served_name == "a/b:x.gguf"
    assert str(HubModel("a/b", COMMIT, "x.gguf")) == f"a/b@{COMMIT}:x.gguf"
    assert HubModel("a/b", COMMIT).served_name == "a/b"
