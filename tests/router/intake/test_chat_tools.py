"""Tools, calls and reasoning are rendered as transformers renders them, and what cannot be is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer

from model_output.formats import ChatFormats, formats_of
from model_output.grammar.grammar import Grammars, grammar_of
from router.errors import ValidationError
from router.intake.helpers.chat_template import ChatTemplate, TemplateRefused
from router.intake.helpers.tokenizer_process import ChatEncoder
from router.intake.model_facts import read_model_facts
from router.intake.validation import check_chat
from router.request import (
    ChatOptions,
    ChatRefused,
    Conversation,
    Message,
    Tool,
    ToolCall,
    ToolMode,
)
from tests.fleets import DEMO_MODEL
from tests.router.intake.chat_templates import HARMONY, LLAMA, MISTRAL, QWEN, TEMPLATES

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rom <&>", "Köln"]}}}
TOOLS = (Tool("get_weather", "The weather in a city.", json.dumps(WEATHER)), Tool("now", "The time."))
CALL = ToolCall("abcdefghi", "get_weather", '{"city": "Köln", "near": [1.5, null, {"a": "<b>"}]}')
ASKED = (Message("user", "How warm is it?"),)
CALLED = Message("assistant", "", (CALL,), reasoning="I need\nthe weather.")
RETURNED = Message("tool", "31 °C", tool_call_id="abcdefghi")
CHATS = {
    "asked": Conversation(ASKED, tools=TOOLS),
    "with a system": Conversation((Message("system", "Be brief."), *ASKED), tools=TOOLS),
    "called": Conversation((*ASKED, CALLED, RETURNED), tools=TOOLS),
    "goes on": Conversation(
        (*ASKED, CALLED, RETURNED, Message("assistant", "31 °C."), Message("user", "And now?")), tools=TOOLS
    ),
    "no tools any more": Conversation((*ASKED, CALLED, RETURNED)),
}
SHOWN = [
    {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
    for name, description, parameters in (
        ("get_weather", "The weather in a city.", WEATHER),
        ("now", "The time.", {"type": "object", "properties": {}}),
    )
]


@pytest.fixture(scope="module")
def stock() -> Any:
    return AutoTokenizer.from_pretrained(DEMO_MODEL)


def as_transformers_takes_it(chat: Conversation, reasoning_key: str) -> list[dict[str, Any]]:
    """The conversation as the templates' documentation writes it, made without the router's code."""
    turns: list[dict[str, Any]] = []
    for message in chat.messages:
        turn: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning:
            turn[reasoning_key] = message.reasoning
        if message.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.loads(call.arguments)},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id:
            turn |= {"tool_call_id": message.tool_call_id, "name": "get_weather"}
        turns.append(turn)
    return turns


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS.keys())
@pytest.mark.parametrize("family", [*TEMPLATES, "demo"])
def test_chats_with_tools_render_as_in_transformers(family: str, chat: Conversation, stock: Any) -> None:
    source = stock.chat_template if family == "demo" else TEMPLATES[family]
    expected = stock.apply_chat_template(
        as_transformers_takes_it(chat, "thinking" if family == "harmony" else "reasoning_content"),
        tools=SHOWN if chat.tools else None,
        chat_template=source,
        tokenize=False,
        add_generation_prompt=True,
    )
    special = {name: str(value) for name, value in stock.special_tokens_map.items()}
    assert ChatTemplate(source, special).render(chat) == expected


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(texts, st.dictionaries(texts, values, max_size=3), st.booleans())
def test_any_text_and_arguments_render_as_in_transformers(
    stock: Any, text: str, arguments: dict[str, Any], is_ascii: bool
) -> None:
    call = ToolCall("abcdefghi", "f", json.dumps(arguments, ensure_ascii=is_ascii))
    chat = Conversation(
        (Message("user", text), Message("assistant", text, (call,), reasoning="x")), tools=(Tool("f", text),)
    )
    expected = stock.apply_chat_template(
        as_transformers_takes_it(chat, "reasoning_content"),
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": text,
                    "parameters": {"type": "object", "properties": {}},
                },
            }
        ],
        chat_template=QWEN,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert ChatTemplate(QWEN, {}).render(chat) == expected


def past(arguments: str) -> Conversation:
    call = ToolCall("abcdefghi", "f", arguments)
    return Conversation((*ASKED, Message("assistant", "", (call,)), RETURNED), tools=(Tool("f"),))


TEXTS: dict[str, str | dict[str, Any]] = {
    "not json": "not json",
    '{"a": ': '{"a": ',
    "[1]": "[1]",
    '"a"': '"a"',
    '{"a": NaN}': '{"a": NaN}',
    '{"a": 1e999}': '{"a": 1e999}',
    '{"a": "\\ud83d"}': '{"a": "\\ud83d"}',
    '{"a": ' + "9" * 5000 + "}": '{"a": ' + "9" * 5000 + "}",
    "[" * 5000: "[" * 5000,
    "": {},
    "null": {},
    '{"a": 9007199254740993}': {"a": 9007199254740993},
    '{"a": "\\ud83d\\ude00"}': {"a": "😀"},
}
"""Arguments of a past call, and the value that the template is shown."""
TAGGED = """{%- for m in messages %}{{- m.role }}: {{ m.content }}
{%- for call in m.tool_calls or [] %}<function={{ call.function.name }}>
{%- for name, value in call.function.arguments|items %}<parameter={{ name }}>{{ value }}</parameter>
{%- endfor %}
{%- endfor %}{%- endfor %}{{ tools }}"""
"""A template that writes each argument by itself, as those of Qwen's coders and of GLM do."""


@pytest.mark.parametrize("family", [*TEMPLATES, "demo"])
def test_arguments_of_the_past_are_an_object_or_the_text_itself(family: str, stock: Any) -> None:
    source = stock.chat_template if family == "demo" else TEMPLATES[family]
    special = {name: str(value) for name, value in stock.special_tokens_map.items()}
    for arguments, shown in TEXTS.items():
        chat = past(arguments)
        turns = as_transformers_takes_it(past("{}"), "reasoning_content")
        turns[1]["tool_calls"][0]["function"]["arguments"] = shown
        turns[2]["name"] = "f"
        expected = stock.apply_chat_template(
            turns,
            tools=[
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "description": "",
                        "parameters": {"type": "object", "properties": {}},
                    },
                }
            ],
            chat_template=source,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert ChatTemplate(source, special).render(chat) == expected, arguments[:20]


def test_text_arguments_reach_templates_that_take_objects_apart() -> None:
    for arguments, shown in TEXTS.items():
        text = ChatTemplate(TAGGED, {}).render(past(arguments))
        single = {"arguments": shown} if isinstance(shown, str) else shown
        assert "".join(f"<parameter={name}>{value}</parameter>" for name, value in single.items()) in text


@given(st.text(st.characters(codec="utf-8")))
def test_any_past_arguments_can_be_shown(stock: Any, arguments: str) -> None:
    encoder = ChatEncoder(stock.backend_tokenizer, ChatTemplate(QWEN, {}), ChatFormats())
    assert encoder.encode(past(arguments)).token_ids


@pytest.mark.parametrize(
    ("source", "formats"),
    [
        (LLAMA, ChatFormats("llama3_json", "")),
        (QWEN, ChatFormats("hermes", "think")),
        (MISTRAL, ChatFormats("mistral", "")),
        (HARMONY, ChatFormats("harmony", "harmony")),
    ],
)
def test_the_formats_of_these_templates_are_known(source: str, formats: ChatFormats) -> None:
    assert formats_of("any", source) == formats


def refused(chat: Conversation, source: str, formats: ChatFormats | None = None) -> str:
    """Return the field for which a chat is refused."""
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    with pytest.raises(ValidationError) as error:
        check_chat(chat, template, formats_of("", source) if formats is None else formats)
    return error.value.fields[0]


BLIND = "{% for m in messages %}{{ m.content }}{% endfor %}"
BY_HALF = BLIND + "{% if messages | length > 1 %}{{ tools }}{% endif %}{# shows no tool_calls #}"


def test_a_template_that_cannot_show_tools_or_calls_is_refused() -> None:
    assert refused(CHATS["asked"], BLIND) == "chat.tools"
    assert refused(CHATS["no tools any more"], BLIND) == "chat.messages[1].tool_calls"
    check_chat(
        Conversation(ASKED, tools=TOOLS, tool_mode=ToolMode.NONE), ChatTemplate(QWEN, {}), ChatFormats()
    )


def test_tools_that_are_not_shown_in_this_chat_are_refused(stock: Any) -> None:
    encoder = ChatEncoder(stock.backend_tokenizer, ChatTemplate(BY_HALF, {}), ChatFormats())
    with pytest.raises(ChatRefused) as error:
        encoder.encode(CHATS["asked"])
    assert error.value.field == "chat.tools[0]"
    assert encoder.encode(CHATS["called"]).token_ids


def test_calls_of_unknown_notation_cannot_be_forced() -> None:
    source = BLIND + "{{ tools }}"
    forced = Conversation(ASKED, tools=TOOLS, tool_mode=ToolMode.REQUIRED)
    assert refused(forced, source) == "chat.tool_choice"
    assert (
        refused(Conversation(ASKED, tools=(Tool("f"), Tool("g", strict=True))), source)
        == "chat.tools[1].strict"
    )
    single = Conversation(ASKED, tools=TOOLS, parallel_tool_calls=False)
    assert refused(single, source) == "chat.parallel_tool_calls"
    check_chat(Conversation(ASKED, tools=TOOLS), ChatTemplate(source, {}), ChatFormats())


def test_what_a_template_says_of_calls_is_said_to_the_caller() -> None:
    short = Conversation((*ASKED, Message("assistant", "", (ToolCall("c1", "now", "{}"),))), tools=TOOLS)
    with pytest.raises(TemplateRefused, match="alphanumeric strings with length 9"):
        ChatTemplate(MISTRAL, {"bos_token": "<s>", "eos_token": "</s>"}).render(short)


def test_a_model_may_have_a_template_for_tools_alone(tmp_path: Any) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"vocab_size": 8, "max_position_embeddings": 8}')
    named = [{"name": "default", "template": BLIND}, {"name": "tool_use", "template": QWEN}]
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": named}))
    facts = read_model_facts(tmp_path)
    assert facts.chat_template is not None
    assert facts.formats == ChatFormats("hermes", "")
    assert facts.chat_template.render(Conversation(ASKED)) == "How warm is it?"
    assert "<tools>" in facts.chat_template.render(CHATS["asked"])
    config.write_text("{}")
    (tmp_path / "chat_template.jinja").write_text(QWEN)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(MISTRAL)
    assert read_model_facts(tmp_path).formats == ChatFormats("mistral", "think")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    found = Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    found.add_special_tokens(["<|python_tag|>", "<|eot_id|>"])
    found.add_tokens([AddedToken("<tool_call>", special=False)])
    return found


def encoded(tokenizer: Tokenizer, source: str, chat: Conversation) -> Any:
    template = ChatTemplate(source, {"bos_token": "<|bos|>", "eos_token": "<|eos|>"})
    return ChatEncoder(tokenizer, template, formats_of("", source)).encode(chat)


def test_a_prompt_says_how_its_output_is_to_be_read(tokenizer: Tokenizer) -> None:
    asked = encoded(tokenizer, QWEN, CHATS["asked"])
    assert (asked.formats, asked.reasoning_open) == (ChatFormats("hermes", "think"), False)
    assert not asked.has_special_markers, "its markers are tokens that a reader sees in any case"
    thinking = Conversation(ASKED, ChatOptions({"opens_thinking": True}))
    opened = encoded(tokenizer, QWEN, thinking)
    assert (opened.formats, opened.reasoning_open) == (ChatFormats("", "think"), True)
    assert encoded(tokenizer, LLAMA, CHATS["asked"]).has_special_markers
    assert not encoded(tokenizer, LLAMA, CHATS["no tools any more"]).has_special_markers


def test_thoughts_come_before_a_format_and_only_there(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(QWEN, {})
    encoder = ChatEncoder(tokenizer, template, formats_of("", QWEN))
    closed, opened = (
        Conversation(ASKED, ChatOptions({"opens_thinking": True} if is_open else {}))
        for is_open in (False, True)
    )
    assert encoder.encode(closed).around_format == ""
    first, second = (encoder.encode(chat, has_format=True).around_format for chat in (closed, opened))
    assert "@format" in first
    assert "@format" in second
    assert '"<think>"' in first
    assert '"<think>"' not in second, "the prompt has it"
    assert encoded(tokenizer, LLAMA, closed).around_format == ""
    begun = (*ASKED, Message("assistant", "Well,"))
    going_on = Conversation(begun, ChatOptions(add_generation_prompt=False, continue_final_message=True))
    assert encoder.encode(going_on, has_format=True).around_format == ""


def test_a_format_stands_beside_calls_unless_one_is_forced(tokenizer: Tokenizer) -> None:
    encoder = ChatEncoder(tokenizer, ChatTemplate(QWEN, {}), formats_of("", QWEN))
    for change, has_calls in (
        ({}, True),
        ({"parallel_tool_calls": False}, True),
        ({"tool_mode": ToolMode.NONE}, False),
    ):
        chat = Conversation(ASKED, tools=TOOLS, **change)
        found = encoder.encode(chat, has_format=True)
        assert "@format" in found.around_format
        assert ("get_weather" in found.around_format) == has_calls
        assert found.calls_grammar == ""
    forced = encoder.encode(Conversation(ASKED, tools=TOOLS, named_tool="now"), has_format=True)
    assert (forced.around_format, "now" in forced.calls_grammar) == ("", True)


@pytest.mark.parametrize(
    ("change", "has_grammar"),
    [
        ({}, False),
        ({"tool_mode": ToolMode.AUTO}, False),
        ({"tool_mode": ToolMode.NONE, "parallel_tool_calls": False}, False),
        ({"tool_mode": ToolMode.REQUIRED}, True),
        ({"named_tool": "now"}, True),
        ({"parallel_tool_calls": True}, False),
        ({"parallel_tool_calls": False}, True),
        ({"tools": (Tool("f", strict=True),)}, True),
    ],
)
def test_calls_follow_a_grammar_only_where_rules_are_asked_for(
    tokenizer: Tokenizer, change: dict[str, Any], has_grammar: bool
) -> None:
    chat = Conversation(**{"messages": ASKED, "tools": TOOLS} | change)
    grammar = encoded(tokenizer, QWEN, chat).calls_grammar
    assert bool(grammar) == has_grammar
    if chat.named_tool is not None:
        assert "get_weather" not in grammar


def test_a_forced_call_is_written_with_the_vocabulary_s_markers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    chat = Conversation(ASKED, tools=TOOLS, named_tool="now")
    grammar = encoded(tokenizer, QWEN, chat).calls_grammar
    compiled = Grammars(path, tokenizer.get_vocab_size(), [1]).compiled(grammar_of("grammar", grammar))
    text = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokens[0] == tokenizer.token_to_id("<tool_call>")
    follower = compiled.begin()
    assert follower.num_allowed(tokens) == len(tokens)
    follower.follow(tokens[:1])
    assert follower.allowed_after(tokens) is not None


def test_arguments_keep_to_formats_as_outputs_do(tokenizer: Tokenizer) -> None:
    at = {"properties": {"at": {"type": "string", "format": "time"}}}
    chat = Conversation(ASKED, tools=(Tool("f", parameters=json.dumps(at)),), tool_mode=ToolMode.REQUIRED)
    assert "[0-5][0-9]" in encoded(tokenizer, QWEN, chat).calls_grammar, "no leap second"


def test_tools_nested_too_deeply_are_refused_by_name(tokenizer: Tokenizer) -> None:
    deep = '{"items": ' * 600 + "{}" + "}" * 600
    chat = Conversation(ASKED, tools=(Tool("f", parameters=deep),), tool_mode=ToolMode.REQUIRED)
    with pytest.raises(ChatRefused, match="nested too deeply") as error:
        encoded(tokenizer, QWEN, chat)
    assert error.value.field == "chat.tools"


def test_tools_with_too_long_a_grammar_are_refused_by_name(tokenizer: Tokenizer) -> None:
    long = Tool("f", parameters=json.dumps({"enum": ["x" * (256 << 10)]}))
    with pytest.raises(ChatRefused, match="characters") as error:
        encoded(tokenizer, QWEN, Conversation(ASKED, tools=(long,), tool_mode=ToolMode.REQUIRED))
    assert error.value.field == "chat.tools"
