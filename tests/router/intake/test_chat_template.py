"""Chats are rendered as transformers renders them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from router.intake.helpers.chat_template import ChatTemplate, TemplateRefused
from router.intake.model_facts import read_model_facts
from router.request import ChatOptions, Conversation, Message

DEMO_MODEL = Path(__file__).parents[3] / "demo_model"

TEMPLATES = {
    "loops and trimmed blocks": (
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if loop.first and m.role == 'system' %}\n<<{{ m.content | trim }}>>\n"
        "    {% continue %}{% endif %}\n"
        "[{{ m['role'] }}] {{ m['content'] }}{{ eos_token }}\n{% endfor %}\n"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    "tojson keeps text as it is": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
    "generation marks": (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}"
        "{% if tools is none %}no tools{% endif %}"
    ),
    "the date": "{{ strftime_now('%Y') }}",
}

CHATS = [
    [("user", "hello")],
    [("system", '  be <brief> & "true" '), ("user", "größe?\n"), ("assistant", "é"), ("user", "")],
]


def conversation(turns: list[tuple[str, str]], options: ChatOptions | None = None) -> Conversation:
    return Conversation(tuple(Message(*turn) for turn in turns), options or ChatOptions())


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO_MODEL)


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
@pytest.mark.parametrize("chat", CHATS)
def test_template_renders_as_in_transformers(
    source: str, chat: list[tuple[str, str]], tokenizer: Any
) -> None:
    turns = [{"role": role, "content": content} for role, content in chat]
    expected = tokenizer.apply_chat_template(
        turns, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    assert ChatTemplate(source, special).render(conversation(chat)) == expected


@pytest.mark.parametrize(
    "chat", [[("user", "What is a list?")], [("user", "a"), ("assistant", "b"), ("user", "c")]]
)
def test_models_own_template_renders_and_tokenises_as_in_transformers(
    chat: list[tuple[str, str]], tokenizer: Any
) -> None:
    facts = read_model_facts(DEMO_MODEL)
    assert facts.chat_template is not None
    turns = [{"role": role, "content": content} for role, content in chat]
    expected = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    rendered = facts.chat_template.render(conversation(chat))
    assert rendered == expected
    ids = tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=True, return_dict=False)
    from tokenizers import Tokenizer

    assert (
        Tokenizer.from_file(str(facts.tokenizer_file)).encode(rendered, add_special_tokens=False).ids == ids
    )


def test_what_a_template_refuses_is_said_in_its_words() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        template.render(conversation([("user", "hello")]))


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_template_stays_in_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, {}).render(conversation([("user", "hello")]))


WITH_ARGUMENTS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim if trims else m.content }}|{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ level }}"
    "{% if not enable_thinking %}<no think>{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"enable_thinking": True, "level": 3},
        {"level": 2.5, "trims": True},
        {"level": "high", "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ],
)
@pytest.mark.parametrize("last", ["a  ", " a", "twice a", "ends\n"])
@pytest.mark.parametrize(("adds", "continues"), [(True, False), (False, False), (False, True)])
def test_arguments_and_prompt_ends_are_those_of_transformers(
    arguments: dict[str, Any], last: str, adds: bool, continues: bool, tokenizer: Any
) -> None:
    chat = [("user", "twice a"), ("assistant", last)]
    expected = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in chat],
        chat_template=WITH_ARGUMENTS,
        tokenize=False,
        add_generation_prompt=adds,
        continue_final_message=continues,
        **arguments,
    )
    options = ChatOptions(arguments, adds, continues)
    assert ChatTemplate(WITH_ARGUMENTS, {}).render(conversation(chat, options)) == expected


def test_a_last_message_that_the_template_drops_cannot_be_continued() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    with pytest.raises(TemplateRefused, match="to be continued"):
        template.render(conversation([("user", "a"), ("assistant", "b")], ChatOptions({}, False, True)))


@pytest.mark.parametrize(
    "arguments", [{"tools": 5}, {"tools": [1, None]}, {"level": {}}, {"range": 1}, {"raise_exception": "x"}]
)
def test_arguments_that_make_no_sense_are_refused_or_harmless(arguments: dict[str, Any]) -> None:
    source = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ level + 1 if level else '' }}"
    template = ChatTemplate(source + "{{ range(2) | list }}{{ raise_exception is defined }}", {})
    with contextlib.suppress(TemplateRefused):
        template.render(conversation([("user", "a")], ChatOptions(arguments)))
