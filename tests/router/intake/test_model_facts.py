"""A model's broken files are refused in one sentence that names the file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from model_output.text.model_files import FileUnusable
from router.intake.helpers.tokenizer_pool import TokenizerPool
from router.intake.model_facts import ModelUnusable, read_model_facts
from tests.fleets import DEMO_MODEL

CONFIG = '{"vocab_size": 9, "max_position_embeddings": 9%s}'
SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in (*SMALL, "chat_template.jinja", "special_tokens_map.json"):
        if (DEMO_MODEL / name).exists():
            shutil.copy(DEMO_MODEL / name, folder)
    read_model_facts(folder)
    return folder


BROKEN = [
    ("config.json", "{", "is not JSON (Expecting property name"),
    ("config.json", "[" * 100_000, "is not JSON ("),
    ("config.json", "[1]", "holds a list; accepted: a JSON object"),
    ("config.json", b"\xff\xfe{", "is not JSON ("),
    ("config.json", CONFIG % ', "text_config": 3', "has the text_config 3; accepted: a JSON object"),
    ("config.json", CONFIG % ', "architectures": 7', "has the architectures 7; accepted: a list of names"),
    ("generation_config.json", "half", "is not JSON ("),
    ("generation_config.json", '{"eos_token_id": ["x"]}', "has the eos_token_id ['x']; accepted: a token id"),
    ("tokenizer_config.json", "[]", "holds a list"),
    ("special_tokens_map.json", "{,}", "is not JSON ("),
    ("chat_template.jinja", "{% for x in y %}", "has a chat template that cannot be compiled ("),
    ("chat_template.jinja", "{{ a }}\n{{ b c }}", "line 2); accepted: a template that jinja compiles"),
    ("chat_template.jinja", b"\xff{{ a }}", "is not UTF-8 (invalid start byte at byte 0); accepted: text"),
    ("additional_chat_templates/tool_use.jinja", "{% if", "has a chat template that cannot be compiled ("),
]


@pytest.mark.parametrize(("file", "content", "reason"), BROKEN)
def test_a_broken_file_is_named(model: Path, file: str, content: str | bytes, reason: str) -> None:
    path = model / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelUnusable) as refused:
        read_model_facts(model)
    sentence = str(refused.value)
    assert sentence.startswith(f"{path} ")
    assert reason in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("stated", ["3", '[{"name": "default"}]', '[{"name": "default", "template": 3}]'])
def test_a_template_that_is_no_text_is_refused(model: Path, stated: str) -> None:
    (model / "chat_template.jinja").unlink()
    (model / "tokenizer_config.json").write_text(f'{{"chat_template": {stated}}}')
    with pytest.raises(ModelUnusable, match=r"tokenizer_config\.json has the chat_template .*; accepted: "):
        read_model_facts(model)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "chat_template.jinja"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_at_once(
    model: Path, file: str, make: Callable[[Path], None]
) -> None:
    (model / file).unlink(missing_ok=True)
    make(model / file)
    with pytest.raises(ModelUnusable, match=f"{file} (is not a regular file|cannot be read .Is a dir)"):
        read_model_facts(model)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": {"type": "BPE"}}'])
async def test_a_broken_tokenizer_is_named(model: Path, content: str) -> None:
    (model / "tokenizer.json").write_text(content)
    facts = read_model_facts(model)
    pool = TokenizerPool(facts.tokenizer_file, 1, facts.chat_template, facts.formats)
    try:
        with pytest.raises(FileUnusable) as refused:
            await pool.warm_up()
    finally:
        pool.close()
    assert str(refused.value).startswith(f"{model / 'tokenizer.json'} is no tokenizer (")
