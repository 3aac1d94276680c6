"""One choice's output: the text of each token, and the token that ends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.detokenizer import TextStream
from engine.stop import StopMatcher, StopString, compile_stop_string
from scheduling.request import FinishReason, StopRules


@dataclass(frozen=True, slots=True)
class OutputRules:
    """Stop rules with the model's part filled in; shared by the choices of a request."""

    limit: int
    """Most tokens of output: `max_tokens`, or what the context leaves."""
    min_tokens: int
    eos_token_ids: frozenset[int]
    """Empty when they are to be ignored."""
    stop_token_ids: frozenset[int]
    stop_strings: tuple[StopString, ...]


def output_rules(
    stop: StopRules, eos_token_ids: Iterable[int], prompt_tokens: int, max_context: int
) -> OutputRules:
    """`prompt_tokens` is below `max_context`, so that at least one token fits."""
    return OutputRules(
        limit=min(stop.max_tokens, max_context - prompt_tokens),
        min_tokens=stop.min_tokens,
        eos_token_ids=frozenset() if stop.ignore_eos else frozenset(eos_token_ids),
        stop_token_ids=frozenset(stop.stop_token_ids),
        stop_strings=tuple(compile_stop_string(text) for text in stop.stop_strings),
    )


class OutputStream:
    """Text and end of one choice, token by token: a pure function of the tokens and the rules.

    The texts add up to the tokenizer's decoding of all tokens, cut before a stop string and without the token
    that ended the choice if that was an end-of-sequence or stop token. `stream` is None for a model without a
    tokenizer: then there is no text.
    """

    __slots__ = ("_matcher", "_num_tokens", "_rules", "_stream")

    def __init__(self, rules: OutputRules, stream: TextStream | None) -> None:
        self._rules = rules
        self._stream = stream
        self._matcher = StopMatcher(rules.stop_strings) if rules.stop_strings else None
        self._num_tokens = 0

    def push(self, token_id: int) -> tuple[str, FinishReason]:
        """The text that goes out with this token, and whether (and why) it is the last one."""
        rules = self._rules
        can_stop = self._num_tokens >= rules.min_tokens
        self._num_tokens += 1
        if can_stop and token_id in rules.eos_token_ids:
            return self._finish("", FinishReason.EOS)
        if can_stop and token_id in rules.stop_token_ids:
            return self._finish("", FinishReason.STOP)
        text = "" if self._stream is None else self._stream.push(token_id)
        if self._matcher is not None:
            text, is_stopped = self._matcher.push(text, can_stop=self._num_tokens >= rules.min_tokens)
            if is_stopped:
                return text, FinishReason.STOP
        if self._num_tokens >= rules.limit:
            return self._finish(text, FinishReason.LENGTH)
        return text, FinishReason.NONE

    def _finish(self, text: str, reason: FinishReason) -> tuple[str, FinishReason]:
        rest = "" if self._stream is None else self._stream.flush()
        if self._matcher is None:
            return text + rest, reason
        # An incomplete character becomes text only now, and may still complete a stop string.
        more, is_stopped = self._matcher.push(rest, can_stop=self._num_tokens >= self._rules.min_tokens)
        if is_stopped:
            return text + more, FinishReason.STOP
        return text + more + self._matcher.flush(), reason
