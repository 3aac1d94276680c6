"""Grammars of outputs: which tokens may follow, so that a choice's text is what its request asks for.

llguidance compiles JSON Schemas, regular expressions and Lark grammars to one kind of grammar, and computes
the allowed tokens with a derivative-based lexer and an Earley parser. Of the engines tried, it was the only
one that never produced text that did not validate; what it cannot guarantee it refuses.

The state of a grammar is a function of the tokens so far, so a choice that was preempted, moved or resumed
goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

from llguidance import JsonCompiler, LLMatcher, LLParserLimits, LLTokenizer

from output_text.refusal import GrammarRefused

MAX_KEPT = 64
"""Compiled grammars that are kept."""
_LIMITS = LLParserLimits(verbose_errors=False)
_JSON = JsonCompiler(separators=(", ", ": "), whitespace_flexible=False)


def grammar_of(kind: str, text: str) -> str:
    """Return the grammar of an output format. Raises `GrammarRefused`.

    `kind` is a field of the contract's `OutputFormat`; `text` is its text, and for `choice` a JSON array.
    """
    try:
        return _grammar_of(kind, text)
    except ValueError as error:
        raise GrammarRefused(str(error)) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a bug of the compiler, which only this name identifies
            raise
        raise GrammarRefused(f"its compiler fails: {error}") from None


def _grammar_of(kind: str, text: str) -> str:
    match kind:
        case "json_schema":
            return _JSON.compile("{}" if text.strip() == "true" else text)
        case "json_object":
            return _JSON.compile('{"type": "object"}')
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            return "start: " + " | ".join(json.dumps(choice) for choice in json.loads(text))
        case _:
            return LLMatcher.grammar_from_lark(text)


class Grammars:
    """Compiles grammars for one tokenizer, whose tokens it reads once.

    Some models can follow none: those without an end-of-sequence token, and those whose tokenizer does not
    tell the bytes of its tokens.
    """

    def __init__(self, tokenizer_file: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self.vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._missing = "" if eos_token_ids else "the model has no end-of-sequence token"
        try:
            self._tokenizer = LLTokenizer(
                tokenizer_file.read_text(encoding="utf-8"),
                n_vocab=vocab_size,
                eos_token=sorted(eos_token_ids) or None,
            )
        except ValueError as error:
            self._missing = f"the bytes of the model's tokens are not known: {error}"
        self._eos_token_ids = tuple(eos_token_ids)
        self._kept: dict[str, LLMatcher] = {}
        """Compiled grammars before their first token, the one used last at the end."""

    def refusal(self, grammar: str, *, may_be_empty: bool = True) -> str | None:
        """Return why no output can follow a grammar, or None.

        JSON is never empty: a schema that is satisfied by no text at all refers to nothing but itself.
        """
        if self._missing:
            return self._missing
        matcher = self._compiled(grammar).deep_copy()
        if matcher.is_error():
            return str(matcher.get_error()).partition("\n")[0]
        follower = Follower(matcher, self.vocab_size)
        allowed = follower.allowed_after(())
        if allowed is None:
            return follower.error
        can_end = any(allowed[token_id // 8] >> (token_id % 8) & 1 for token_id in self._eos_token_ids)
        return "it describes no text" if can_end and not may_be_empty else None

    def begin(self, grammar: str) -> Follower:
        """Return the state of a grammar before the first token."""
        return Follower(self._compiled(grammar).deep_copy(), self.vocab_size)

    def _compiled(self, grammar: str) -> LLMatcher:
        matcher = self._kept.pop(grammar, None)
        if matcher is None:
            assert self._tokenizer is not None, "refused before"
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        self._kept[grammar] = matcher  # as the newest
        if len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return matcher


class Follower:
    """The state of a grammar after some tokens."""

    __slots__ = ("_matcher", "_num_bytes", "_num_tokens", "error")

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._num_bytes = 4 * -(-vocab_size // 32)
        self._num_tokens = 0
        self.error = ""
        """Why no token may follow; empty while one may."""

    def allowed_after(self, output: Sequence[int]) -> bytes | None:
        """Take in the tokens of `output` that are new; return which may follow, or None if none may.

        Bit i of byte b is token 8 · b + i, in whole words of 4 bytes.
        """
        new = list(output[self._num_tokens :])
        self._num_tokens = len(output)
        if new:
            self._matcher.consume_tokens(new)
        allowed = bytes(self._matcher.compute_bitmask())[: self._num_bytes]
        # A matcher that fails allows the end of the sequence: what is cut off there would look complete.
        if self._matcher.is_error():
            reason, message = self._matcher.stop_reason(), self._matcher.get_error().partition("\n")[0]
            self.error = f"{message} ({reason})"
        elif not any(allowed):
            self.error = "no token may follow"
        return None if self.error else allowed
