"""The committed checkpoint is small, whole, loads offline and has learnt something."""

import math
import socket
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

FOLDER = Path(__file__).resolve().parents[2] / "demo_model"
MAX_BYTES = 8_000_000
SPECIAL_TOKENS = ["<|bos|>", "<|eos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
# Written for this test, in the documentation's manner; it stands in no file the model was trained on.
PARAGRAPH = (
    "This function returns a new list that contains the items of the given sequence. If the argument is not "
    "a sequence, a TypeError is raised. The optional second argument is the default value, which is returned "
    "if the sequence is empty."
)
# The checkpoint reaches 2.27 nats per token. Untrained it is at 7.7, about the ln(2048) = 7.62 of a uniform
# guess; with the values of a single layer zeroed, at 2.51.
MAX_PARAGRAPH_NATS = 2.4


def refuse_connections(*_: object) -> NoReturn:
    raise AssertionError("loading the checkpoint opened a connection")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse_connections)
        loaded = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    assert isinstance(loaded, PreTrainedModel)
    return loaded


def mean_nats(model: PreTrainedModel, ids: list[int]) -> float:
    rows = torch.tensor([ids])
    with torch.inference_mode():
        return float(model(input_ids=rows, labels=rows).loss)


def chat_ids(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, str]]) -> list[int]:
    ids: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return list(ids)


def test_the_folder_is_small_enough_to_commit() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= MAX_BYTES, sizes


def test_every_file_a_server_needs_is_there() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    assert names >= {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_the_architecture_is_a_llama_with_grouped_queries(model: PreTrainedModel) -> None:
    config = model.config
    assert config.architectures == ["LlamaForCausalLM"]
    assert config.num_attention_heads > config.num_key_value_heads > 1
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_the_vocabulary_matches_the_embeddings(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    assert len(tokenizer) == model.config.vocab_size


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_unicode_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text


def test_special_tokens_are_single_ids_known_as_special(tokenizer: PreTrainedTokenizerFast) -> None:
    encoded = [tokenizer.encode(token) for token in SPECIAL_TOKENS]
    assert [len(ids) for ids in encoded] == [1] * len(SPECIAL_TOKENS)
    assert {ids[0] for ids in encoded} == set(tokenizer.all_special_ids)
    assert tokenizer.decode([ids[0] for ids in encoded], skip_special_tokens=True) == ""


def test_both_ends_of_a_text_stop_a_generation(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    expected = tokenizer.convert_tokens_to_ids(["<|eos|>", "<|end|>"])
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id == expected


def test_the_chat_template_renders_each_role(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a list?"},
        {"role": "assistant", "content": "A sequence."},
        {"role": "user", "content": "Why?"},
    ]
    ids = chat_ids(tokenizer, messages)
    assert tokenizer.decode(ids) == (
        "<|bos|><|system|>Be brief.<|end|><|user|>What is a list?<|end|>"
        "<|assistant|>A sequence.<|end|><|user|>Why?<|end|><|assistant|>"
    )


def test_the_chat_template_refuses_an_unknown_role(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TemplateError, match="role critic: expected system, user, assistant or tool"):
        tokenizer.apply_chat_template([{"role": "critic", "content": "42"}], tokenize=False)


def test_a_chat_without_tools_is_rendered_as_in_training(tokenizer: PreTrainedTokenizerFast) -> None:
    """The template shows tools too, which the model has not been trained with."""
    messages = [{"role": "user", "content": " a\n"}, {"role": "assistant", "content": "b "}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False)
    assert rendered == "<|bos|><|user|> a\n<|end|><|assistant|>b <|end|>"


def test_an_unseen_paragraph_is_predicted_far_better_than_by_chance(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    nats = mean_nats(model, tokenizer.encode(PARAGRAPH))
    assert nats < MAX_PARAGRAPH_NATS < math.log(model.config.vocab_size) / 2


def test_the_last_positions_are_as_good_as_the_first(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Positions up to the stated maximum were trained: one paragraph repeated stays easy to its end."""
    ids = tokenizer.encode(PARAGRAPH + "\n\n")
    whole = (ids * (model.config.max_position_embeddings // len(ids)))[
        -model.config.max_position_embeddings :
    ]
    rows = torch.tensor([whole])
    with torch.inference_mode():
        logits = model(input_ids=rows).logits[0, -len(ids) - 1 : -1]
    nats = torch.nn.functional.cross_entropy(logits, rows[0, -len(ids) :])
    assert float(nats) < MAX_PARAGRAPH_NATS


def test_a_chat_answer_ends_by_itself(model: Any, tokenizer: PreTrainedTokenizerFast) -> None:
    prompt = chat_ids(tokenizer, [{"role": "user", "content": "What is the heapq module?"}])
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=200)
    answer = output[0, len(prompt) :].tolist()
    assert 5 < len(answer) < 200
    assert answer[-1] == tokenizer.convert_tokens_to_ids("<|end|>")
