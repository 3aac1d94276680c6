"""A checkpoint whose files are broken is refused in one sentence, before its weights are read."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest
import torch

from engine.errors import ModelRefused
from engine.model.allow_list import read_config
from engine.model.checkpoint import check_tokenizer, check_weights
from engine.model.fingerprint import weights_digest
from engine.model.model import load_model
from engine.model.quantised.quantisation import Quantisation
from tests.fleets import DEMO_MODEL


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_MODEL, tmp_path / "model"))


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", "{", "config.json is not JSON ("),
        ("config.json", "[" * 100_000, "config.json is not JSON ("),
        ("generation_config.json", "half", "generation_config.json is not JSON ("),
        (
            "generation_config.json",
            '{"eos_token_id": "x"}',
            "generation_config.json has the eos_token_id",
        ),
        ("tokenizer.json", "{}", "tokenizer.json is no tokenizer ("),
        ("model.safetensors.index.json", "{", "model.safetensors.index.json is not JSON ("),
        ("model.safetensors.index.json", "{}", "model.safetensors.index.json cannot be read (KeyError("),
        ("model.safetensors", "", "model.safetensors has no readable header ("),
    ],
)
def test_a_broken_file_is_named(model: Path, file: str, content: str, reason: str) -> None:
    (model / file).write_text(content)
    with pytest.raises(ModelRefused) as refused:
        load_model(model, torch.float32, torch.device("cpu"))
    sentence = str(refused.value)
    assert sentence.startswith(f"model {model}: {reason}")
    assert "; accepted: " in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("end", ['"x"', "1e400", "[]", '{"a": 1}'])
def test_a_header_of_any_numbers_is_refused(model: Path, end: str) -> None:
    header = f'{{"a": {{"data_offsets": [0, {end}]}}}}'.encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ModelRefused, match=r"model\.safetensors has no readable header"):
        check_weights(model)


def test_a_pipe_among_the_files_is_not_waited_for(model: Path) -> None:
    os.mkfifo(model / "extra.safetensors")
    weights_digest(model, None, Quantisation.NONE)
    for file in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
        (model / file).unlink(missing_ok=True)
        os.mkfifo(model / file)
    for check in (read_config, check_tokenizer, check_weights):
        with pytest.raises(ModelRefused, match="is not a regular file"):
            check(model)
