"""Each file of a model may name the end of a sequence, and each of these tokens ends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.model.checkpoint import stated_ends
from model_output.text.model_files import FileUnusable, eos_token_ids, sampling_defaults
from router.intake.model_facts import read_model_facts
from tests.model_output.text.tokenizers_zoo import ALL, token_id

TOKENIZER = ALL["llama_2"]
EOS = token_id(TOKENIZER, "<eos>")
SIZE = TOKENIZER.get_vocab_size()


def model(directory: Path, **files: dict[str, Any]) -> Path:
    config = {"vocab_size": SIZE, "max_position_embeddings": 99} | files.pop("config", {})
    for name, content in (files | {"config": config}).items():
        (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    TOKENIZER.save(str(directory / "tokenizer.json"))
    return directory


GENERATION, CONFIG = {"eos_token_id": [5, 6]}, {"eos_token_id": 7}
NAMED, WITH_CONTENT = {"eos_token": "<eos>"}, {"eos_token": {"content": "<eos>"}}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config": GENERATION, "config": CONFIG, "tokenizer_config": NAMED}, (5, 6, 7, EOS)),
        ({"generation_config": GENERATION}, (5, 6)),
        ({"config": CONFIG}, (7,)),
        ({"config": {"text_config": {"vocab_size": SIZE, "max_position_embeddings": 9} | CONFIG}}, (7,)),
        ({"tokenizer_config": WITH_CONTENT}, (EOS,)),
        ({"special_tokens_map": NAMED, "tokenizer_config": {}}, (EOS,)),
        ({"tokenizer_config": {"eos_token": "unknown"}}, ()),
        ({"tokenizer_config": {"eos_token": None}, "generation_config": {"eos_token_id": None}}, ()),
        ({"generation_config": {"eos_token_id": [7, SIZE, -1]}, "config": CONFIG}, (7,)),
        ({}, ()),
    ],
)
def test_every_file_names_ends(
    tmp_path: Path, files: dict[str, dict[str, Any]], expected: tuple[int, ...]
) -> None:
    directory = model(tmp_path, **files)
    assert eos_token_ids(directory, SIZE) == expected
    assert stated_ends(directory, SIZE) == expected
    assert read_model_facts(directory).eos_token_ids == frozenset(expected)


def test_an_end_that_is_no_token_is_refused(tmp_path: Path) -> None:
    directory = model(tmp_path, config={"eos_token_id": "</s>"})
    with pytest.raises(FileUnusable, match=r"config\.json has the eos_token_id '</s>'; accepted: a token id"):
        eos_token_ids(directory, SIZE)


def test_sampling_defaults_are_read(tmp_path: Path) -> None:
    stated = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05, "min_p": 0}
    directory = model(tmp_path, generation_config=stated | {"do_sample": True, "max_length": 99})
    assert sampling_defaults(directory) == stated
    assert read_model_facts(directory).sampling_defaults == stated


@pytest.mark.parametrize("kept", [0, -1])
def test_no_top_k_keeps_all(tmp_path: Path, kept: int) -> None:
    assert sampling_defaults(model(tmp_path, generation_config={"top_k": kept, "top_p": None})) == {
        "top_k": 0
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "0.6"),
        ("temperature", -1),
        ("temperature", True),
        ("top_k", 2.5),
        ("top_p", 0),
        ("top_p", 1.1),
        ("min_p", []),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e999),
    ],
)
def test_a_wrong_sampling_default_is_refused(tmp_path: Path, name: str, value: object) -> None:
    directory = model(tmp_path, generation_config={name: value})
    with pytest.raises(FileUnusable, match=rf"generation_config\.json has the {name} .*; accepted: a "):
        sampling_defaults(directory)
