"""A model's formats are found by its template, and a prompt that ends inside reasoning by its end."""

from __future__ import annotations

import pytest

from engine.model.allow_list import ARCHITECTURES
from model_output.formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ChatFormats,
    formats_of,
    is_reasoning_open,
    special_markers,
)

TEMPLATES = {
    ("gpt_oss", ""): ("harmony", "harmony"),
    ("gpt2", ""): ("", ""),
    ("olmo2", "{{ message['content'] }}"): ("", ""),
    ("llama", "{{- '<|python_tag|>' + tool_call.name }}"): ("llama3_json", ""),
    ("llama", '{"name": function name, "parameters": dictionary of argument name and its value}'): (
        "llama3_json",
        "",
    ),
    ("llama", "put it in the format of [func_name1(params_name1=params_value1)]"): ("pythonic", ""),
    ("llama", "{% set content = content.split('</think>')[-1] %}"): ("", "think"),
    ("qwen2", '\'\\n<tool_call>\\n{"name": "\''): ("hermes", ""),
    ("qwen3", "'<tool_call>' '<think>\\n' '</think>'"): ("hermes", "think"),
    ("qwen3_moe", "<tool_call>\n<function=example_function_name>\n<parameter="): ("qwen3_coder", ""),
    ("mistral", "{{- '[TOOL_CALLS] [' }}"): ("mistral", ""),
    ("mistral", "[TOOL_CALLS] [ARGS] [THINK]"): ("mistral", "mistral"),
    ("granite", "respond with <|tool_call|> followed by a JSON list of tools used"): ("granite", ""),
    ("granite", "<|tool_call|> Here is my thought process:"): ("granite", "granite"),
    ("granite", "<|tool_call|> <think></think> <response></response>"): ("granite", "granite"),
    ("phi3", "'<|tool|>' + message['tools'] + '<|/tool|>'"): ("phi4", ""),
    ("phi3", "'<think>' '</think>'"): ("", "think"),
}


@pytest.mark.parametrize(("model_type", "template"), TEMPLATES)
def test_formats_are_found_by_template(model_type: str, template: str) -> None:
    assert model_type in ARCHITECTURES
    assert formats_of(model_type, template) == ChatFormats(*TEMPLATES[model_type, template])


def test_a_model_without_a_template_has_no_formats() -> None:
    assert formats_of("llama", None) == ChatFormats()


THINK, HARMONY = ChatFormats("", "think"), ChatFormats("harmony", "harmony")
PROMPTS = [
    (THINK, "<|im_start|>assistant\n<think>\n", "", True),
    (THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n", "", False),
    (THINK, "<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", "", False),
    (THINK, "<|im_start|>assistant\n<think>\nWell, ", "<think>\nWell, ", True),
    (THINK, "<|im_start|>assistant\n<think></think>So", "<think></think>So", False),
    (ChatFormats("hermes"), "<think>", "", False),
    (HARMONY, "<|start|>assistant", "", False),
    (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>", "", True),
]


@pytest.mark.parametrize(("formats", "prompt", "continued", "expected"), PROMPTS)
def test_a_prompt_may_end_inside_reasoning(
    formats: ChatFormats, prompt: str, continued: str, expected: bool
) -> None:
    assert is_reasoning_open(formats, prompt, continued) is expected


def test_special_tokens_are_needed_where_they_mark_something() -> None:
    assert special_markers(ChatFormats("mistral"), {"[TOOL_CALLS]", "<s>"}) == {"[TOOL_CALLS]"}
    assert special_markers(ChatFormats("", "mistral"), {"[TOOL_CALLS]", "[THINK]"}) == {"[THINK]"}
    assert special_markers(ChatFormats("hermes", "think"), {"<|im_end|>"}) == frozenset()
    assert "<|channel|>" in special_markers(HARMONY, {"<|channel|>", "<|call|>"})


def test_every_family_has_formats_of_its_own_name() -> None:
    found = {name for names in TEMPLATES.values() for name in names}
    assert found == {*TOOL_FORMATS, *REASONING_FORMATS, ""}
