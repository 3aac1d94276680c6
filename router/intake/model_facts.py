"""Read what the router needs of a model from its directory, without torch or transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from model_output.formats import ChatFormats, formats_of
from model_output.text.model_files import (
    FileUnusable,
    eos_token_ids,
    read_object,
    read_text,
    sampling_defaults,
)
from router.intake.helpers.chat_template import ChatTemplate

MAX_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len")


class ModelUnusable(Exception):
    """The model cannot be served. The message names the file and the mistake in it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of the model against which requests are checked."""

    name: str
    path: Path
    architecture: str
    model_type: str
    vocab_size: int
    max_context_tokens: int
    eos_token_ids: frozenset[int]
    chat_template: ChatTemplate | None
    formats: ChatFormats = field(default_factory=ChatFormats)
    """How the model writes tool calls and reasoning."""
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    """The sampling parameters of requests that do not state them."""
    more_names: tuple[str, ...] = ()
    """Further names that requests may give the model."""

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"


def read_model_facts(path: Path) -> ModelFacts:
    """Read a checkpoint's directory; raises `ModelUnusable`."""
    if not path.is_dir():
        raise ModelUnusable(
            f"--model is {str(path)!r}, which is not a directory; accepted: a checkpoint's directory, a "
            "GGUF file, or a model of the hub as ORG/NAME or ORG/NAME@REVISION"
        )
    try:
        return _facts(path)
    except FileUnusable as error:
        raise ModelUnusable(str(error)) from error


def _facts(path: Path) -> ModelFacts:
    config = _read_object(path / "config.json")
    text_config = config.get("text_config", config)
    if not isinstance(text_config, dict):
        raise FileUnusable(path / "config.json", f"has the text_config {text_config!r}", "a JSON object")
    if not os.path.lexists(path / "tokenizer.json"):
        raise ModelUnusable(f"{path / 'tokenizer.json'} is missing: the router tokenises with it")
    model_type = str(config.get("model_type", ""))
    template = _chat_template(path)
    vocab_size = _positive(text_config, ("vocab_size",), path)
    return ModelFacts(
        name=path.resolve().name,
        path=path,
        architecture=_architecture(path, config),
        model_type=model_type,
        vocab_size=vocab_size,
        max_context_tokens=_positive(text_config, MAX_CONTEXT_FIELDS, path),
        eos_token_ids=frozenset(eos_token_ids(path, vocab_size)),
        chat_template=template,
        formats=_formats(model_type, template),
        sampling_defaults=sampling_defaults(path),
    )


def _architecture(path: Path, config: dict[str, Any]) -> str:
    stated = config.get("architectures") or ["unknown"]
    if not isinstance(stated, list):
        raise FileUnusable(path / "config.json", f"has the architectures {stated!r}", "a list of names")
    return str(stated[0])


def _positive(config: dict[str, Any], fields: tuple[str, ...], path: Path) -> int:
    for name in fields:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelUnusable(f"{path / 'config.json'} has no positive {' or '.join(fields)}")


def _chat_template(path: Path) -> ChatTemplate | None:
    config_file = path / "tokenizer_config.json"
    config = _read_optional(config_file)
    own_file, tool_file = path / "chat_template.jinja", path / "additional_chat_templates" / "tool_use.jinja"
    source, tool_source = _read_optional_text(own_file), None
    if source is None:
        own_file = tool_file = config_file
        source, tool_source = _stated_templates(config_file, config.get("chat_template"))
    else:
        tool_source = _read_optional_text(tool_file)
    if source is None:
        return None
    try:
        return ChatTemplate(source, _special_tokens(path, config), tool_source)
    except (jinja2.TemplateError, RecursionError) as error:
        of_tools = tool_source is not None and getattr(error, "source", None) == tool_source
        line = f", line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise FileUnusable(
            tool_file if of_tools else own_file,
            f"has a chat template that cannot be compiled ({str(error).partition(chr(10))[0]}{line})",
            "a template that jinja compiles",
        ) from error


def _stated_templates(file: Path, stated: object) -> tuple[str | None, str | None]:
    """Return the template in a tokenizer's config, and the one for chats with tools if it has another."""
    accepted = "a template, or a list of objects with name and template"
    if isinstance(stated, list):
        if not all(isinstance(each, dict) and {"name", "template"} <= each.keys() for each in stated):
            raise FileUnusable(file, f"has the chat_template {str(stated)[:80]!r}", accepted)
        named = {str(template["name"]): template["template"] for template in stated}
        sources = named.get("default"), named.get("tool_use")
    else:
        sources = stated, None
    if not all(source is None or isinstance(source, str) for source in sources):
        raise FileUnusable(file, f"has the chat_template {str(stated)[:80]!r}", accepted)
    return sources


def _formats(model_type: str, template: ChatTemplate | None) -> ChatFormats:
    if template is None:
        return ChatFormats()
    return ChatFormats(
        formats_of(model_type, template.tool_source).tools, formats_of(model_type, template.source).reasoning
    )


def _special_tokens(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the tokens that a template may use, such as `bos_token`."""
    stated = _read_optional(path / "special_tokens_map.json") | config
    tokens = {}
    for name, value in stated.items():
        if not name.endswith("_token") or value is None:
            continue
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[name] = content
    return tokens


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError as error:
        raise ModelUnusable(f"{path} is missing") from error


def _read_optional(path: Path) -> dict[str, Any]:
    """Return the object in a file, or an empty one without the file."""
    try:
        return read_object(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}


def _read_optional_text(path: Path) -> str | None:
    try:
        return read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
