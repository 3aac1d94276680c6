"""One choice's output: the text of each token, and the token that ends it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from model_output.text.detokenizer import Detokenizer, TextStream
from model_output.text.reasoning import ReasoningEnd
from model_output.text.stop import StopMatcher, StopString
from scheduling.request import FinishReason, Matched, StopRules, matched


@dataclass(frozen=True, slots=True)
class OutputRules:
    """Stop rules completed with the model's; the choices of a request share them."""

    limit: int
    """The most output tokens: `max_tokens`, or what the context leaves."""
    min_tokens: int
    eos_token_ids: frozenset[int]
    """Empty if they are ignored."""
    stop_token_ids: frozenset[int]
    stop_strings: tuple[StopString, ...]
    reasoning_opens: tuple[str, ...] = ()
    reasoning_closes: tuple[str, ...] = ()
    """Stop strings in reasoning do not count, as `StopRules` says."""
    include_stop: bool = False
    """Keep the stop string or stop token that ends the choice in its text."""


def output_rules(
    stop: StopRules, eos_token_ids: Iterable[int], prompt_tokens: int, max_context: int
) -> OutputRules:
    """Complete `stop` with the model's rules. At least one token must fit after the prompt."""
    return OutputRules(
        limit=min(stop.max_tokens, max_context - prompt_tokens),
        min_tokens=stop.min_tokens,
        eos_token_ids=frozenset() if stop.ignore_eos else frozenset(eos_token_ids),
        stop_token_ids=frozenset(stop.stop_token_ids),
        stop_strings=tuple(StopString(text) for text in stop.stop_strings),
        reasoning_opens=stop.reasoning_opens,
        reasoning_closes=stop.reasoning_closes,
        include_stop=stop.include_stop,
    )


class OutputStream:
    """The text and the end of one choice, token by token: a pure function of the tokens and the rules.

    The texts add up to the tokenizer's decoding of all tokens. The text ends before the stop string, the
    end-of-sequence token or the stop token that ended the choice, or after it with `include_stop`. `stream`
    is None for a model without a tokenizer, which produces no text.
    """

    __slots__ = ("_matcher", "_num_tokens", "_reasoning", "_rules", "_stream", "stop_place")

    def __init__(self, rules: OutputRules, stream: TextStream | None) -> None:
        self._rules = rules
        self._stream = stream
        self._matcher: StopMatcher | None = None
        if rules.stop_strings:
            self._matcher = StopMatcher(rules.stop_strings, include_stop=rules.include_stop)
        self._reasoning: ReasoningEnd | None = None
        if rules.stop_strings and rules.reasoning_closes:
            self._reasoning = ReasoningEnd(rules.reasoning_opens, rules.reasoning_closes)
        self._num_tokens = 0
        self.stop_place: int | None = None
        """The index of the stop string that ended the choice, if one did."""

    def push(self, token_id: int) -> tuple[str, FinishReason]:
        """Return the text that this token releases, and whether (and why) it is the last token."""
        rules = self._rules
        can_stop = self._num_tokens >= rules.min_tokens
        self._num_tokens += 1
        if can_stop and token_id in rules.eos_token_ids:
            return self._end_with(token_id, FinishReason.EOS)
        if can_stop and token_id in rules.stop_token_ids:
            return self._end_with(token_id, FinishReason.STOP)
        text = "" if self._stream is None else self._stream.push(token_id)
        if self._matcher is not None:
            text = self._search(self._matcher, text)
            if self.stop_place is not None:
                return text, FinishReason.STOP
        if self._num_tokens >= rules.limit:
            return self._finish(text, FinishReason.LENGTH)
        return text, FinishReason.NONE

    def _end_with(self, token_id: int, reason: FinishReason) -> tuple[str, FinishReason]:
        if not self._rules.include_stop or self._stream is None:
            return self._finish("", reason)
        # The token itself ends the choice, so its text is not searched for stop strings.
        return self._stream.push(token_id) + self._stream.flush(), reason

    def _finish(self, text: str, reason: FinishReason) -> tuple[str, FinishReason]:
        rest = "" if self._stream is None else self._stream.flush()
        if self._matcher is None:
            return text + rest, reason
        # Only now does an incomplete character become text; it may still complete a stop string.
        text += self._search(self._matcher, rest, is_end=True)
        if self.stop_place is not None:
            return text, FinishReason.STOP
        return text + self._matcher.flush(), reason

    def _search(self, matcher: StopMatcher, text: str, *, is_end: bool = False) -> str:
        """Look for stop strings in more text, unless it is reasoning; return the text that may be sent."""
        thought = ""
        if self._reasoning is not None:
            thought, text = self._reasoning.push(text)
            if is_end and not self._reasoning.is_over:
                text += self._reasoning.flush()
            if self._reasoning.is_over:
                self._reasoning = None
        can_stop = self._num_tokens >= self._rules.min_tokens
        answer, self.stop_place = matcher.push(text, can_stop=can_stop)
        return thought + answer


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of an output: its text so far, and how it has ended, if it has."""

    text: str
    reason: FinishReason = FinishReason.NONE
    matched: Matched | None = None


def beginning_of(
    prompt_tail: Sequence[int],
    token_ids: Sequence[int],
    stop: StopRules,
    rules: OutputRules,
    detokenizer: Detokenizer,
) -> Beginning:
    """Return the text of an output's first tokens, and whether they end it, as their worker did.

    `prompt_tail` are the last `PROMPT_TAIL` tokens of the prompt, or all.
    """
    stream = detokenizer.stream(prompt_tail, skip_special_tokens=stop.skip_special_tokens)
    output, texts = OutputStream(rules, stream), list[str]()
    for token_id in token_ids:
        text, reason = output.push(token_id)
        texts.append(text)
        if reason is not FinishReason.NONE:
            match = matched(reason, token_id, output.stop_place, stop)
            return Beginning("".join(texts), reason, match)
    return Beginning("".join(texts))
