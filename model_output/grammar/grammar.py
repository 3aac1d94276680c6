"""Grammars of outputs: which tokens may follow, so that a choice's text is what its request asks for.

llguidance compiles JSON Schemas, regular expressions and Lark grammars to one kind of grammar, and computes
the allowed tokens with a derivative-based lexer and an Earley parser. Of the engines tried, it was the only
one that never produced text that did not validate; what it cannot guarantee it refuses.

The state of a grammar is a function of the tokens so far, so a choice that was preempted, moved or resumed
goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from llguidance import JsonCompiler, LLExecutor, LLMatcher, LLParserLimits, LLTokenizer

from model_output.grammar.bounds import bounded
from model_output.grammar.ebnf import is_ebnf, lark_of
from model_output.grammar.exact_numbers import check_numbers, check_schemas_in, schema_of
from model_output.grammar.kept import Kept
from model_output.grammar.refusal import GrammarRefused, in_words

MAX_KEPT_CHARACTERS = 4 << 20
"""Grammars that are kept compiled, by their texts: some 200 MB at most, and thousands of usual schemas."""
_NEEDS_BOUNDS = re.compile(r'"(hostname|time|date-time)"')
TOO_COMPLEX = "the format became too complex to follow, as ambiguous grammars and nested repetitions do"
_IN_LARK = frozenset(("grammar", "choice"))
"""Kinds of formats whose grammars are texts in Lark; those of others are llguidance's JSON."""
_OVER_LIMIT = re.compile(r"too many|max is \d", re.IGNORECASE)
"""In llguidance's texts about limits of its parser that an output has reached."""
_UNFORCED = '%llguidance {"no_forcing": true}\n'
_LIMITS = LLParserLimits(verbose_errors=False)
_JSON = JsonCompiler(separators=(", ", ": "), whitespace_flexible=False)

Result = TypeVar("Result")


def grammar_of(kind: str, text: str, around: str = "") -> str:
    """Return the grammar of an output format. Raises `GrammarRefused`.

    `kind` is a field of the contract's `OutputFormat`; `text` is its text, and for `choice` a JSON array.
    `around` is a Lark grammar of the whole output, which refers to the format as `@format`; empty if the
    output has nothing else.
    """
    grammar = _or_refused(lambda: _grammar_of(kind, text))
    return _within(around, kind, grammar) if around else grammar


def _within(whole: str, kind: str, grammar: str) -> str:
    """Return a grammar whose `@format` is another one."""
    inner = {"lark_grammar": grammar} if kind in _IN_LARK else json.loads(grammar)["grammars"][0]
    return json.dumps({"grammars": [{"lark_grammar": whole}, {**inner, "name": "format"}]})


def _or_refused(work: Callable[[], Result]) -> Result:
    """Return the result of llguidance's work. Raises `GrammarRefused` for whatever it raises."""
    try:
        return work()
    except RecursionError:
        raise GrammarRefused("it is nested too deeply") from None
    except MemoryError:
        raise GrammarRefused("its grammar takes too much memory to compile") from None
    except (ValueError, TypeError) as error:
        raise GrammarRefused(in_words(str(error))) from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a bug of llguidance, which only this name identifies
            raise
        raise GrammarRefused("llguidance cannot compile it") from None


def _grammar_of(kind: str, text: str) -> str:
    match kind:
        case "json_schema":
            schema = schema_of(text)
            check_numbers(schema)
            if _NEEDS_BOUNDS.search(text):
                schema = bounded(schema)
            return _JSON.compile("{}" if schema is True else json.dumps(schema))
        case "json_object":
            return _JSON.compile('{"type": "object"}')
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":
            return "start: " + " | ".join(json.dumps(choice) for choice in json.loads(text))
        case _:
            if is_ebnf(text):
                return LLMatcher.grammar_from_lark(lark_of(text))
            check_schemas_in(text)
            return LLMatcher.grammar_from_lark(text)


def grammar_for(tenant: str, grammar: str) -> str:
    """Return a grammar in a text that no other tenant has.

    Grammars are kept compiled by their texts. Without this, the time of an answer would say whether another
    tenant has used a format.
    """
    if not tenant:
        return grammar
    name = f"of_{hashlib.sha256(tenant.encode()).hexdigest()[:32]}"
    if not grammar.startswith("{"):
        return f"{grammar}\n// {name}\n"
    document = json.loads(grammar)
    document["grammars"][0]["name"] = name
    return json.dumps(document)


def _special_texts(tokenizer: str) -> frozenset[str]:
    """Return the texts of all tokens that llguidance takes for special ones, as `_unmarked` leaves them."""
    added = [(token["content"], token.get("special")) for token in json.loads(tokenizer)["added_tokens"]]
    texts = [text for text, is_special in added if text and (is_special or f"{text[0]}{text[-1]}" == "<>")]
    return frozenset(_unmarked(text) for spelt in texts for text in (spelt, json.dumps(spelt))) - {""}


def _unmarked(text: str) -> str:
    """Return a text without marks between its characters, such as escapes and quotes in a grammar."""
    return text.replace("\\", "").replace('"', "").replace(" ", "")


def _unforced(grammar: str) -> str:
    """Return a grammar whose masks have all tokens that fit, also where only one text does."""
    if not grammar.startswith("{"):
        return _UNFORCED + grammar
    document = json.loads(grammar)
    first, *others = document["grammars"]
    if first.get("lark_grammar"):
        first["lark_grammar"] = _UNFORCED + first["lark_grammar"]
    else:
        whole = {"lark_grammar": f"{_UNFORCED}start: @format"}
        document["grammars"] = [whole, {**first, "name": "format"}, *others]
    return json.dumps(document)


class Grammars:
    """Compiles grammars for one tokenizer, from one thread.

    The tokens are read once, here: it takes most of a second for a vocabulary of 128k, and holds Python's
    lock. Some models can follow no grammar: those without an end-of-sequence token, and those whose tokenizer
    does not tell the bytes of its tokens.
    """

    def __init__(self, tokenizer_file: Path, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self.vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._missing = "" if eos_token_ids else "the model has no end-of-sequence token"
        text = tokenizer_file.read_text(encoding="utf-8")
        eos_token = sorted(eos_token_ids) or None
        try:
            self._tokenizer = _or_refused(lambda: LLTokenizer(text, n_vocab=vocab_size, eos_token=eos_token))
        except GrammarRefused as refused:
            self._missing = f"the bytes of the model's tokens are not known: {refused}"
        self._special_texts = frozenset[str]() if self._missing else _special_texts(text)
        self._kept = Kept[str, CompiledGrammar](MAX_KEPT_CHARACTERS)

    def compiled(self, grammar: str) -> CompiledGrammar:
        """Return a grammar, compiled now or before. Raises `GrammarRefused` if no output can follow it.

        The compiler lets other threads run meanwhile.
        """
        if self._missing:
            raise GrammarRefused(self._missing)
        compiled = self._kept.get(grammar)
        if compiled is None:
            compiled = _or_refused(lambda: self._compile(grammar))
            self._kept.put(grammar, compiled, len(grammar))
        return compiled

    def check(self, grammar: str) -> None:
        """Compile a grammar, and keep nothing. Raises `GrammarRefused` as `compiled` does."""
        if self._missing:
            raise GrammarRefused(self._missing)
        _or_refused(lambda: self._compile(grammar))

    def _compile(self, grammar: str) -> CompiledGrammar:
        assert self._tokenizer is not None
        plain = _unmarked(grammar)
        if any(text in plain for text in self._special_texts) and "%llguidance" not in grammar:
            # A text that is forced is tokenised like a prompt: with tokens that do not stand for their texts.
            grammar = _unforced(grammar)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_LIMITS)
        first = Follower(matcher, self.vocab_size)  # copies keep what its first mask has found out
        allowed = first.allowed_after(())
        if allowed is None:
            is_endless = first.error.startswith("NoExtension")  # such as a schema that refers only to itself
            raise GrammarRefused("it describes no text" if is_endless else in_words(first.error))
        self._check_second(matcher, allowed)
        return CompiledGrammar(matcher, self.vocab_size)

    def _check_second(self, matcher: LLMatcher, allowed: bytes) -> None:
        """Raise `GrammarRefused` if nothing may follow a token that may be first.

        A repetition of many thousands shows only then that it cannot be followed.
        """
        number = int.from_bytes(allowed, "little")
        for token_id in self._eos_token_ids:
            number &= ~(1 << token_id)
        if number == 0:
            return
        second = Follower(matcher.deep_copy(), self.vocab_size)
        if second.allowed_after([(number & -number).bit_length() - 1]) is None:
            raise GrammarRefused(in_words(second.error))


class CompiledGrammar:
    """A grammar before its first token."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def begin(self) -> Follower:
        """Return the state before the first token."""
        return Follower(self._matcher.deep_copy(), self._vocab_size)


class Follower:
    """The state of a grammar after some tokens."""

    __slots__ = ("_num_bytes", "_num_tokens", "error", "matcher")

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self.matcher = matcher
        self._num_bytes = 4 * -(-vocab_size // 32)
        self._num_tokens = 0
        self.error = ""
        """Why no token may follow; empty while one may."""

    def follow(self, output: Sequence[int]) -> None:
        """Take in the tokens of `output` that are new."""
        new = list(output[self._num_tokens :])
        self._num_tokens = len(output)
        if new:
            self.matcher.consume_tokens(new)

    def follow_forced(self, most: int) -> list[int]:
        """Take in tokens, at most so many, as long as only one may follow; return them.

        They are those that masks would allow one by one: each is found after the one before it.
        """
        forced: list[int] = []
        while len(forced) < most and (next_ones := self.matcher.compute_ff_tokens()):
            self.matcher.consume_token(next_ones[0])
            forced.append(next_ones[0])
        self._num_tokens += len(forced)
        return forced

    def num_allowed(self, token_ids: Sequence[int]) -> int:
        """Return how many of some tokens may follow one after the other."""
        return int(self.matcher.validate_tokens(list(token_ids)))

    def after(self, token_id: int) -> Follower:
        """Return the state behind one more token, which may follow; this one stays as it is."""
        after = Follower(self.matcher.deep_copy(), 8 * self._num_bytes)
        after._num_tokens = self._num_tokens + 1
        after.matcher.consume_token(token_id)
        return after

    def check(self, *, has_allowed: bool) -> None:
        """Set `error` if no token may follow; `has_allowed` says whether any was found to be allowed."""
        # A matcher that fails allows the end of the sequence: what is cut off there would look complete.
        if self.matcher.is_error():
            message, reason = self.matcher.get_error().partition("\n<")[0], self.matcher.stop_reason()
            is_too_complex = reason.endswith("TooComplex") or _OVER_LIMIT.search(message)
            self.error = TOO_COMPLEX if is_too_complex else f"{message} ({reason})"
        elif not has_allowed:
            self.error = "no token may follow"

    def allowed_after(self, output: Sequence[int]) -> bytes | None:
        """Take in the tokens of `output` that are new; return which may follow, or None if none may.

        Bit i of byte b is token 8 · b + i, in whole words of 4 bytes.
        """
        self.follow(output)
        allowed = bytes(self.matcher.compute_bitmask())[: self._num_bytes]
        self.check(has_allowed=any(allowed))
        return None if self.error else allowed


class MaskFinder:
    """Finds the tokens that may follow many states at once, on threads that need no lock of Python's."""

    def __init__(self, num_threads: int) -> None:
        self._executor = LLExecutor(num_threads)

    def find(
        self, states: Sequence[tuple[Follower, int]], address: int, num_row_bytes: int, num_rows: int
    ) -> None:
        """Write the bits of each state into its row of a table at `address`; `Follower.check` comes next."""
        matchers = [(follower.matcher, row) for follower, row in states]
        self._executor.unsafe_compute_mask_ptr(matchers, address, num_row_bytes, num_rows)
