"""The requests of a conversation as Claude Code sends them: field for field, with shorter texts.

It asks first for one token and for a title, and counts tokens. Each turn has the whole conversation.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

HEADERS = {
    "accept": "application/json",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "anthropic-version": "2023-06-01",
    "authorization": "Bearer none",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
MODEL = "claude-sonnet-4-5"
_CACHED = {"cache_control": {"type": "ephemeral"}}
_SCHEMA = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}
_UUID = "00000000-1111-4222-8333-444444444444"
_USER_ID = f"user_{'0a' * 32}_account_{_UUID}_session_{_UUID}"
_BASH = {
    "name": "Bash",
    "description": "Executes a given bash command with an optional timeout.\n\n"
    + "Usage notes: be careful. " * 300,
    "input_schema": _SCHEMA
    | {
        "properties": {
            "command": {"description": "The command to execute", "type": "string"},
            "timeout": {"description": "Optional timeout in milliseconds (max 600000)", "type": "number"},
            "description": {"description": "What it does, in 5-10 words", "type": "string"},
            "run_in_background": {"type": "boolean"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    "eager_input_streaming": True,
}
_READ = {
    "name": "Read",
    "description": "Reads a file from the local filesystem. " * 100,
    "input_schema": _SCHEMA
    | {
        "properties": {
            "file_path": {"type": "string"},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        },
        "required": ["file_path"],
        "additionalProperties": False,
    },
}
_SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
TOOLS: list[Json] = [_BASH, _READ, _SEARCH]
_SYSTEM = [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli;"},
    {"type": "text", "text": "You are Claude Code, Anthropic's official CLI for Claude.", **_CACHED},
    {"type": "text", "text": "You are an interactive agent. " + "Be careful. " * 2000, **_CACHED},
]
QUOTA: Json = {
    "model": MODEL,
    "max_tokens": 1,
    "messages": [{"role": "user", "content": "quota"}],
    "metadata": {"user_id": _USER_ID},
}
COUNT: Json = {"model": MODEL, "messages": [{"role": "user", "content": "foo"}], "tools": [_BASH, _READ]}


def title(asked: str) -> Json:
    """Return the request for a title of the conversation, as JSON."""
    schema = {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    }
    return QUOTA | {
        "max_tokens": 32000,
        "messages": [{"role": "user", "content": [{"type": "text", "text": asked}]}],
        "system": [_SYSTEM[0], {"type": "text", "text": "Write a title for this conversation."}],
        "tools": [],
        "temperature": 1,
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "stream": True,
    }


def turn(messages: list[Json]) -> Json:
    """Return the request of one turn."""
    return {
        "model": MODEL,
        "messages": messages,
        "system": _SYSTEM,
        "tools": TOOLS,
        "metadata": {"user_id": _USER_ID},
        "max_tokens": 32000,
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "stream": True,
    }


def asked(text: str) -> Json:
    """Return a message of the user's, after what Claude Code reminds the model of."""
    reminder = "<system-reminder>\nYou can use the following context:\n# currentDate\n</system-reminder>"
    return {
        "role": "user",
        "content": [{"type": "text", "text": reminder}, {"type": "text", "text": text, **_CACHED}],
    }


def resulted(tool_use_id: str, output: str) -> Json:
    """Return the message with a tool's result."""
    result = {"type": "tool_result", "tool_use_id": tool_use_id, "content": output, "is_error": False}
    return {"role": "user", "content": [result | _CACHED]}
