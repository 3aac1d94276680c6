"""Read the files of models and adapters, and say in one sentence why one cannot be used.

Folders of models come from elsewhere. A pipe among their files would be waited for, and a device has no end,
so only regular files are read. Links to them are followed, as caches of models consist of them.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer


@dataclass(eq=False)
class FileUnusable(Exception):
    """The file is there, but `found` is not `accepted`."""

    path: Path
    found: str
    accepted: str

    def __str__(self) -> str:
        return f"{self.path} {self.found}; accepted: {self.accepted}"


def read_regular(path: Path, max_bytes: int | None = None) -> bytearray:
    """Return a file's content. Raises FileNotFoundError and FileUnusable."""
    try:
        # A pipe is opened without waiting for its other end.
        with open(path, "rb", buffering=0, opener=_open_at_once) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise FileUnusable(path, "is not a regular file", "a file")
            if max_bytes is not None and status.st_size > max_bytes:
                raise FileUnusable(path, f"has {status.st_size} bytes", f"at most {max_bytes}")
            content = bytearray(status.st_size)
            size = 0
            while size < len(content) and (read := file.readinto(memoryview(content)[size:])):
                size += read
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise FileUnusable(path, f"cannot be read ({error.strerror})", "a file") from error
    except MemoryError as error:
        raise FileUnusable(path, "is larger than the memory of this process", "a smaller file") from error
    del content[size:]
    return content


def read_text(path: Path) -> str:
    """Return a file's text. Raises FileNotFoundError and FileUnusable."""
    content = read_regular(path)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FileUnusable(path, f"is not UTF-8 ({error.reason} at byte {error.start})", "text") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises FileNotFoundError and FileUnusable."""
    return parse_object(path, read_regular(path))


def parse_object(path: Path, content: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object that a file contains. Raises FileUnusable."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FileUnusable(path, f"is not JSON ({error})", "a JSON object") from error
    if not isinstance(value, dict):
        raise FileUnusable(path, f"holds a {type(value).__name__}", "a JSON object")
    return value


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer in a file. Raises FileNotFoundError and FileUnusable."""
    content = bytes(read_regular(path))
    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:
        reason = str(error).removeprefix("Cannot instantiate Tokenizer from buffer: ")
        accepted = "a tokenizer.json of the `tokenizers` library"
        raise FileUnusable(path, f"is no tokenizer ({reason})", accepted) from error


SAMPLING_DEFAULTS = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, float("inf")),
}
"""The defaults that `generation_config.json` may state, and their ranges."""
_NOT_ZERO = {"top_p", "repetition_penalty"}
_INFINITE = {"repetition_penalty"}


def sampling_defaults(directory: Path) -> dict[str, float]:
    """Return how a model's makers want tokens to be drawn, from its `generation_config.json`.

    Raises FileUnusable for what is no number, or out of range. A negative `top_k`, and one of 0, keep all.
    """
    path, defaults = directory / "generation_config.json", {}
    config = _read_optional(path)
    for name, (low, high) in SAMPLING_DEFAULTS.items():
        value = config.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int if name == "top_k" else int | float) and not isinstance(value, bool)
        if is_number and name == "top_k":
            value = max(0, value)
        is_within = is_number and low <= value <= high
        if not is_within or (name in _NOT_ZERO and value == 0) or (name in _INFINITE and value == high):
            kind = "a whole number" if name == "top_k" else f"a number from {low:g} to {high:g}"
            raise FileUnusable(path, f"has the {name} {value!r}", kind)
        defaults[name] = value
    return defaults


def eos_token_ids(directory: Path, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens of a vocabulary that any file of a model names as the end of a sequence.

    Those of `generation_config.json`, which may be those of a chat's turns, of `config.json` and of the
    tokenizer often differ; each of them ends an output. Raises FileUnusable.
    """
    token_ids: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        config = _read_optional(directory / name)
        text_config = config.get("text_config")
        for holder in (config, text_config if isinstance(text_config, dict) else {}):
            value = holder.get("eos_token_id")
            ids = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(token_id) is int for token_id in ids):
                accepted = "a token id, or a list of them"
                raise FileUnusable(directory / name, f"has the eos_token_id {value!r}", accepted)
            token_ids += ids
    token_ids += _eos_of_tokenizer(directory)
    return tuple(dict.fromkeys(token_id for token_id in token_ids if 0 <= token_id < vocab_size))


def _eos_of_tokenizer(directory: Path) -> list[int]:
    config = _read_optional(directory / "tokenizer_config.json")
    token = config.get("eos_token", _read_optional(directory / "special_tokens_map.json").get("eos_token"))
    content = token.get("content") if isinstance(token, dict) else token
    try:
        added = _read_optional(directory / "tokenizer.json").get("added_tokens", ())
        return [int(token["id"]) for token in added if token["content"] == content]
    except (FileUnusable, LookupError, TypeError, ValueError):
        return []  # whoever tokenises says what is wrong with it


def _read_optional(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
