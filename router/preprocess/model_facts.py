"""Read what the router needs of a model from its directory, without torch or transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chat_formats import ChatFormats, formats_of
from router.preprocess.chat_template import ChatTemplate

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

    @property
    def tokenizer_file(self) -> Path:
        return self.path / "tokenizer.json"


def read_model_facts(path: Path) -> ModelFacts:
    """Read a checkpoint's directory; raises `ModelUnusable`."""
    if not path.is_dir():
        raise ModelUnusable(
            f"--model is {str(path)!r}, which is not a directory; accepted: a checkpoint's directory"
        )
    config = _read_json(path / "config.json")
    text_config = config.get("text_config", config)
    if not (path / "tokenizer.json").is_file():
        raise ModelUnusable(f"{path / 'tokenizer.json'} is missing: the router tokenises with it")
    model_type = str(config.get("model_type", ""))
    template = _chat_template(path)
    return ModelFacts(
        name=path.resolve().name,
        path=path,
        architecture=str((config.get("architectures") or ["unknown"])[0]),
        model_type=model_type,
        vocab_size=_positive(text_config, ("vocab_size",), path),
        max_context_tokens=_positive(text_config, MAX_CONTEXT_FIELDS, path),
        eos_token_ids=_eos_token_ids(path, config, text_config),
        chat_template=template,
        formats=_formats(model_type, template),
    )


def _positive(config: dict[str, Any], fields: tuple[str, ...], path: Path) -> int:
    for name in fields:
        value = config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise ModelUnusable(f"{path / 'config.json'} has no positive {' or '.join(fields)}")


def _eos_token_ids(path: Path, config: dict[str, Any], text_config: dict[str, Any]) -> frozenset[int]:
    """Return the ids that transformers' `generate` uses: the generation config's, else the config's."""
    generation = path / "generation_config.json"
    stated = _read_json(generation).get("eos_token_id") if generation.is_file() else None
    if stated is None:
        stated = config.get("eos_token_id", text_config.get("eos_token_id"))
    if stated is None:
        return frozenset()
    return frozenset(stated if isinstance(stated, list) else [stated])


def _chat_template(path: Path) -> ChatTemplate | None:
    config_file = path / "tokenizer_config.json"
    config = _read_json(config_file) if config_file.is_file() else {}
    source, tool_source = _template_sources(path, config)
    if source is None:
        return None
    return ChatTemplate(source, _special_tokens(path, config), tool_source)


def _template_sources(path: Path, config: dict[str, Any]) -> tuple[str | None, str | None]:
    """Return the model's template, and the one for chats with tools if it has another."""
    own_file, tool_file = path / "chat_template.jinja", path / "additional_chat_templates" / "tool_use.jinja"
    if own_file.is_file():
        tool_source = tool_file.read_text(encoding="utf-8") if tool_file.is_file() else None
        return own_file.read_text(encoding="utf-8"), tool_source
    stated = config.get("chat_template")
    if isinstance(stated, list):
        named = {template["name"]: template["template"] for template in stated}
        return named.get("default"), named.get("tool_use")
    return stated, None


def _formats(model_type: str, template: ChatTemplate | None) -> ChatFormats:
    if template is None:
        return ChatFormats()
    return ChatFormats(
        formats_of(model_type, template.tool_source).tools, formats_of(model_type, template.source).reasoning
    )


def _special_tokens(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the tokens that a template may use, such as `bos_token`."""
    map_file = path / "special_tokens_map.json"
    stated = (_read_json(map_file) if map_file.is_file() else {}) | config
    tokens = {}
    for name, value in stated.items():
        if not name.endswith("_token") or value is None:
            continue
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            tokens[name] = content
    return tokens


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelUnusable(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnusable(f"{path} does not contain a JSON object")
    return value
