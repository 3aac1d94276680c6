"""The tokenizer of a GGUF file, as files of transformers: tokenizer.json and tokenizer_config.json.

`tokenizer.ggml.model` names one of two kinds, both of which merge pairs of pieces:

gpt2    Bytes stand for characters. A text is first cut by a pattern, which `tokenizer.ggml.pre` names, and
        the merges are listed in order.
llama   SentencePiece's BPE. A space is `▁`, what has no piece becomes bytes, and of all pairs the one is
        merged whose whole has the highest score.

The patterns are those of the `tokenizer.json` that the makers of each model publish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gguf_model.errors import GgufUnusable, shown
from gguf_model.header import Header

_KEYS = "tokenizer.ggml"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)
MAX_PIECE = 256
"""Characters of a piece that is merged: each is tried in two parts at every place."""
_SPACE = "▁"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_ENDS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_LETTERS}|\p{{N}}{{1,3}}|{_ENDS}"
_QWEN2 = rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_LETTERS}|\p{{N}}|{_ENDS}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {
    "llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "smaug-bpe": _LLAMA3, "dbrx": _LLAMA3,
    "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2, "gpt-2": _GPT2, "olmo": _GPT2, "tekken": _TEKKEN,
    "smollm": _GPT2, "refact": _GPT2, "starcoder": _GPT2, "command-r": _GPT2, "codeshell": _GPT2,
}  # fmt: skip
_SINGLE_DIGITS = {"smollm", "refact", "starcoder", "command-r", "codeshell"}
_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3", "llama-v3", "tekken"}
"""A word that is a piece is not made of merges."""
_COMPOSED = {"qwen2"}
_BEGIN_BY_DEFAULT = {"llama-bpe", "llama3", "llama-v3", "tekken"}
_ENDS_OF_TURNS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|eom_id|>",
    "<EOT>",
})  # fmt: skip
"""Control tokens that end an output under llama.cpp whether a key names them or not."""
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def tokenizer_files(header: Header, vocab_size: int) -> dict[str, dict[str, Any]]:
    """Return the content of the files of a model's tokenizer, and of generation_config.json, by their names.

    Raises `GgufUnusable`.
    """
    tokens = _Tokens(header, vocab_size)
    return {
        "tokenizer.json": tokens.tokenizer(),
        "tokenizer_config.json": tokens.config(),
        "generation_config.json": tokens.generation(),
    }


class _Tokens:
    """The vocabulary of a file."""

    def __init__(self, header: Header, vocab_size: int) -> None:
        self._header = header
        self._values = header.values
        self._model = self._choice("model", ("gpt2", "llama"), None)
        self._texts = self._list("tokens", str, vocab_size)
        self._types = self._list("token_type", int, vocab_size, [_NORMAL] * vocab_size)
        self._texts = [text or f"[EMPTY_{number}]" for number, text in enumerate(self._texts)]
        self._ids = {text: number for number, text in enumerate(self._texts)}
        if len(self._ids) != vocab_size:
            first = next(text for number, text in enumerate(self._texts) if self._ids[text] != number)
            raise self._refusal("tokens", f"{shown(first)} twice", "tokens that differ")

    def tokenizer(self) -> dict[str, Any]:
        """Return tokenizer.json."""
        whole = self._of_bytes() if self._model == "gpt2" else self._of_pieces()
        added = [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": self._types[number] != _USER,
            }
            for number, text in enumerate(self._texts)
            if self._types[number] in {_UNKNOWN, _CONTROL, _USER}
        ]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            **whole,
            "post_processor": self._post_processor(),
        }

    def config(self) -> dict[str, Any]:
        """Return tokenizer_config.json."""
        config: dict[str, Any] = {"clean_up_tokenization_spaces": False}
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            number = self._token(f"{key}_token_id")
            if number is not None:
                config[f"{name}_token"] = self._texts[number]
        template = self._values.get("tokenizer.chat_template")
        if template is not None:
            if not isinstance(template, str):
                fault = f"has the tokenizer.chat_template {shown(template)}"
                raise GgufUnusable(self._header.path, fault, "a text")
            tools = self._values.get("tokenizer.chat_template.tool_use")
            templates = [{"name": "default", "template": template}, {"name": "tool_use", "template": tools}]
            config["chat_template"] = templates if isinstance(tools, str) else template
        return config

    def generation(self) -> dict[str, Any]:
        """Return generation_config.json: the ends of an output, and how tokens are drawn."""
        by_key = [self._token(f"{name}_token_id") for name in ("eos", "eot", "eom")]
        by_name = [
            number
            for number, text in enumerate(self._texts)
            if text in _ENDS_OF_TURNS and self._types[number] == _CONTROL
        ]
        ends = dict.fromkeys([number for number in by_key if number is not None] + by_name)
        sampling = {
            ours: self._values[f"general.sampling.{theirs}"]
            for theirs, ours in _SAMPLING.items()
            if f"general.sampling.{theirs}" in self._values
        }
        return {"eos_token_id": list(ends), **sampling}

    def _of_bytes(self) -> dict[str, Any]:
        name = self._choice("pre", tuple(_PATTERNS), None)
        digits = {"type": "Digits", "individual_digits": True}
        pattern = {
            "type": "Split",
            "pattern": {"Regex": _PATTERNS[name]},
            "behavior": "Isolated",
            "invert": False,
        }
        to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        steps = [*([digits] if name in _SINGLE_DIGITS else []), pattern, to_bytes]
        merges = [merge.split(" ") for merge in self._list("merges", str, None, [])]
        for merge in merges:
            if len(merge) != 2 or not {*merge, "".join(merge)} <= self._ids.keys():
                fault = f"{shown(' '.join(merge))}"
                raise self._refusal(
                    "merges", fault, "two tokens with a space between, whose whole is a token"
                )
        return {
            "normalizer": {"type": "NFC"} if name in _COMPOSED else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
            "decoder": to_bytes,
            "model": self._bpe(merges, ignore_merges=name in _WHOLE_WORDS_FIRST),
        }

    def _of_pieces(self) -> dict[str, Any]:
        prefix = self._flag("add_space_prefix", default=True)
        unknown = self._token("unknown_token_id")
        replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        before = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
        after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        decoders = [
            {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            *after,
        ]
        model = self._bpe(self._merges_by_score(), byte_fallback=True, fuse_unk=True)
        return {
            "normalizer": {"type": "Sequence", "normalizers": [*before, replaced]},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model | {"unk_token": None if unknown is None else self._texts[unknown]},
        }

    def _merges_by_score(self) -> list[list[str]]:
        """Return each pair of pieces whose whole is a piece, that of the highest score first."""
        scores = self._list("scores", float, len(self._texts))
        pieces = {text: number for number, text in enumerate(self._texts) if self._types[number] == _NORMAL}
        fault: list[tuple[float, int, int, str, str]] = []
        for text, number in pieces.items():
            if len(text) > MAX_PIECE:
                raise self._refusal("tokens", f"a piece of {len(text)} characters", f"at most {MAX_PIECE}")
            for place in range(1, len(text)):
                head, tail = text[:place], text[place:]
                if head in pieces and tail in pieces:
                    fault.append((-scores[number], pieces[head], pieces[tail], head, tail))
        return [[head, tail] for *_, head, tail in sorted(fault)]

    def _bpe(self, merges: list[list[str]], **options: bool) -> dict[str, Any]:
        plain = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
        }
        return plain | options | {"vocab": self._ids, "merges": merges}

    def _post_processor(self) -> dict[str, Any] | None:
        """Return what puts tokens before and after a text."""
        begins = self._model == "llama" or self._values.get(f"{_KEYS}.pre") in _BEGIN_BY_DEFAULT
        ends = {
            "bos": self._flag("add_bos_token", default=begins),
            "eos": self._flag("add_eos_token", default=False),
        }
        ids = {name: self._token(f"{name}_token_id") for name, is_added in ends.items() if is_added}
        used = {name: number for name, number in ids.items() if number is not None}
        if not used:
            return None
        special = {name: {"SpecialToken": {"id": self._texts[used[name]], "type_id": 0}} for name in used}
        single = [special.get("bos"), {"Sequence": {"id": "A", "type_id": 0}}, special.get("eos")]
        second = [special.get("bos"), {"Sequence": {"id": "B", "type_id": 1}}, special.get("eos")]
        texts = {self._texts[number]: number for number in used.values()}
        return {
            "type": "TemplateProcessing",
            "single": [each for each in single if each is not None],
            "pair": [each for each in single + second if each is not None],
            "special_tokens": {
                text: {"id": text, "ids": [number], "tokens": [text]} for text, number in texts.items()
            },
        }

    def _choice(self, key: str, accepted: Sequence[str], default: str | None) -> str:
        value = self._values.get(f"{_KEYS}.{key}", default)
        if not isinstance(value, str) or value not in accepted:
            raise self._refusal(key, shown(value), ", ".join(accepted))
        return value

    def _flag(self, key: str, *, default: bool) -> bool:
        value = self._values.get(f"{_KEYS}.{key}", default)
        if not isinstance(value, bool):
            raise self._refusal(key, shown(value), "true or false")
        return value

    def _token(self, key: str) -> int | None:
        value = self._values.get(f"{_KEYS}.{key}")
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self._texts):
            raise self._refusal(key, shown(value), f"a token from 0 to {len(self._texts) - 1}")
        return value

    def _list(self, key: str, kind: type, length: int | None, default: list[Any] | None = None) -> list[Any]:
        values: Any = self._values.get(f"{_KEYS}.{key}", default)
        if not isinstance(values, list) or not all(type(value) is kind for value in values):
            raise self._refusal(key, shown(values)[:40], f"a list of {kind.__name__}")
        if length is not None and len(values) != length:
            raise self._refusal(key, f"{len(values)} entries", f"{length}, the rows of the embedding")
        return values

    def _refusal(self, key: str, fault: str, accepted: str) -> GgufUnusable:
        return GgufUnusable(self._header.path, f"has in {_KEYS}.{key} {fault}", accepted)


def files_of(header: Header, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the content of the files of a checkpoint's folder besides its weights, by their names."""
    return {"config.json": dict(config), **tokenizer_files(header, int(config["vocab_size"]))}
