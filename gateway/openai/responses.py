"""Responses to chats and completions, whole or in chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from baton.errors import BatonError
from baton.parsing import deltas_of
from baton.types import (
    Choice,
    ChoiceFinished,
    Completion,
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    Queued,
    TokenLogprobs,
    Tokens,
)
from baton.types.deltas import (
    ContentDelta,
    CutCalls,
    Delta,
    TextDelta,
    ToolCallBegun,
    ToolCallEnded,
    said_by_assistant,
)
from gateway.openai.convert import param_of
from gateway.openai.schema import GenerationBody
from gateway.openai.shapes import (
    DONE,
    Logprobs,
    Shape,
    ending_json,
    finish_reason,
    sse,
    usage_json,
)
from gateway.serving.direct import Frames, Line
from gateway.serving.errors import ApiError, openai_error
from gateway.serving.fleet import Vocabulary
from gateway.serving.generations import Running
from gateway.serving.request_log import problem_to_tell
from gateway.serving.slo import comment, early_end, outcome_json
from gateway.serving.streaming import merged


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that the response repeats; `alone` without the one token that every generation has."""

    text: str
    token_ids: tuple[int, ...]
    alone: bool


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the responses to one request.

    `created` is in Unix seconds; `vocabulary` is for logprobs. `prompts` are the tokens of each prompt, if
    the response repeats them.
    """

    body: GenerationBody
    shape: Shape
    model: str
    created: int
    vocabulary: Vocabulary
    wants_logprobs: bool
    prompts: Sequence[Sequence[int]]

    def whole(self, completions: Sequence[Completion], echoes: Sequence[Echo] = ()) -> dict[str, Any]:
        """Return one response for all prompts. Raises `ApiError` if a choice ended early."""
        choices = [
            self._choice(completion, choice, echoes[place] if echoes else None)
            | {"index": place * len(completion.choices) + choice.index}
            | self.prompt(place, in_choice=True)
            for place, completion in enumerate(completions)
            for choice in completion.choices
        ]
        first = completions[0]
        head = self.head(self.shape.whole, first.request_id) | self.prompt(0, in_choice=False)
        return head | {
            "choices": choices,
            "usage": _usage([completion.finished for completion in completions], echoes),
            "baton": outcome_json(first.request_id, first.finished, first.resumes),
        }

    async def chunks(
        self, runnings: Sequence[Running], echoes: Sequence[Echo], line: Line
    ) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a stream of one prompt or several, and an error as its last one."""
        head = self.head(self.shape.chunk, runnings[0].accepted.request_id)
        parts = [
            _Chunks(self, running, head, place, echoes[place] if echoes else None)
            for place, running in enumerate(runnings)
        ]
        if len(runnings) == 1 and not echoes and not self.tells_tokens and not self.prompts:
            runnings[0].write_directly(line, parts[0].said)
        try:
            async with aclosing(merged([part.written() for part in parts])) as written:
                async for data in written:
                    yield data
            if self.body.includes_usage:
                ends = [part.finished for part in parts if part.finished is not None]
                yield sse(head | {"choices": [], "usage": _usage(ends, echoes)})
            yield DONE
        except (BatonError, ApiError) as error:
            yield sse(openai_error(problem_to_tell(error, partial(param_of, body=self.body))))
        finally:
            for running in runnings:
                await running.close()

    @property
    def tells_tokens(self) -> bool:
        """Whether chunks tell more of tokens than what they say."""
        return self.wants_logprobs or self.body.return_token_ids or self.body.counts_usage

    def _choice(self, completion: Completion, choice: Choice, echo: Echo | None) -> dict[str, Any]:
        if finish_reason(choice.finish_reason) is None:
            raise ApiError(early_end(choice.finish_reason, completion.finished.error))
        end = ChoiceFinished(choice.index, choice.finish_reason, 0, choice.stop_string, choice.stop_token_id)
        deltas, token_ids = deltas_of(choice, completion), choice.token_ids
        logprobs: Logprobs = choice.logprobs
        if echo is not None:
            if echo.alone:
                deltas, token_ids, logprobs, end = (), (), (), _at_limit(choice.index)
            deltas, token_ids = (ContentDelta(echo.text), *deltas), echo.token_ids + token_ids
            logprobs = [None, *completion.prompt_logprobs, *logprobs]
        said = said_by_assistant(deltas)
        fields = self.shape.message(said) | {"logprobs": None}
        if self.wants_logprobs:
            fields["logprobs"] = self.shape.logprobs(self.vocabulary, token_ids, logprobs)
        has_calls = bool(said.tool_calls) and self.shape.names_calls
        fields |= ending_json(end, has_calls=has_calls, has_cut_call=bool(CutCalls(deltas)))
        return fields | ({"token_ids": list(token_ids)} if self.body.return_token_ids else {})

    def prompt(self, place: int, *, in_choice: bool) -> dict[str, Any]:
        """Return the tokens of a prompt where they stand: in its choices, or beside them."""
        is_here = bool(self.prompts) and in_choice == self.shape.has_prompt_in_choice
        return {"prompt_token_ids": list(self.prompts[place])} if is_here else {}

    def head(self, kind: str, request_id: str) -> dict[str, Any]:
        return {
            "id": f"{self.shape.id_prefix}{request_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
        }


def _usage(ends: Sequence[Finished], echoes: Sequence[Echo]) -> dict[str, Any]:
    """Return the usage of all prompts. A prompt that is echoed alone has no output."""
    usages = [end.usage for end in ends]
    num_output = 0 if any(echo.alone for echo in echoes) else sum(usage.output_tokens for usage in usages)
    cached = {"cached_tokens": sum(usage.cached_prompt_tokens for usage in usages)}
    usage = usage_json(sum(usage.prompt_tokens for usage in usages), num_output)
    return usage | {"prompt_tokens_details": cached}


def _at_limit(choice: int) -> ChoiceFinished:
    """Return the end of a choice without output, whatever ended the one token that every generation has."""
    return ChoiceFinished(choice, FinishReason.LENGTH, 0)


class _Chunks:
    """Turns the events of one generation into chunks. `place` is that of its prompt in the request."""

    def __init__(
        self, writer: Writer, running: Running, head: dict[str, Any], place: int, echo: Echo | None
    ) -> None:
        self.finished: Finished | None = None
        self._writer = writer
        self._body = writer.body
        self._running = running
        self._head = head
        self._num_output = 0
        self._left = writer.body.n or 1
        self._place = place
        self._first_index = place * self._left
        self._without_prompt = set(range(self._left)) if writer.prompts else set[int]()
        """The choices without a chunk so far, whose first one has the prompt's tokens."""
        self._echo = echo
        self._to_echo = set() if echo is None else set(range(self._left))
        self._prompt_logprobs: list[TokenLogprobs | None] = [None]
        self._cut_calls: dict[int, CutCalls] = {}
        """For each choice that calls tools."""
        self._offsets = Counter[int]()
        """How long the texts of the tokens are whose log-probabilities each choice has had."""
        self._callers: set[int] = set()
        """The choices whose end says that they call tools."""
        self._last_end: ChoiceFinished | None = None
        self._frames = Frames(lambda delta: self._chunk(0, writer.shape.piece(delta)))

    def said(self, deltas: Sequence[TextDelta], num_tokens: int) -> bytes:
        """Return the chunks of tokens that are text."""
        self._num_output += num_tokens
        return b"".join(map(self._frames.of, deltas))

    async def written(self) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of the generation."""
        fields = self._writer.shape.opening()
        for index in range(0 if fields is None else self._left):
            yield self._chunk(index, fields or {})
        async for event in self._running.events:
            for data in self._of(event):
                yield data

    def _of(self, event: Event) -> list[bytes]:
        """Return the chunks of one event. Raises `ApiError` if a choice ended early."""
        match event:
            case Queued():
                return [comment(f"queued, {event.position} ahead")]
            case Tokens():
                return self._tokens(event)
            case ChoiceFinished():
                return self._end(event)
            case PromptLogprobs():
                self._prompt_logprobs += event.logprobs
            case Finished():
                return self._finish(event)
        return []

    def _echoed(self, choice: int) -> list[bytes]:
        """Return the prompt, before the first event of a choice."""
        if choice not in self._to_echo:
            return []
        assert self._echo is not None
        self._to_echo.discard(choice)
        fields, token_ids = self._writer.shape.piece(ContentDelta(self._echo.text)), self._echo.token_ids
        self._add_tokens(fields, choice, token_ids, self._prompt_logprobs)
        return [self._chunk(choice, fields)]

    def _tokens(self, event: Tokens) -> list[bytes]:
        echoed: list[bytes] = []
        if self._echo is not None:
            echoed = self._echoed(event.choice)
            if self._echo.alone:
                return echoed
        self._num_output += len(event.token_ids)
        pieces = self._pieces(event.choice, deltas_of(event, self._running.accepted))
        # What says nothing is bytes of an unfinished character, or what may begin a call.
        if not pieces and self._writer.tells_tokens:
            pieces = [self._writer.shape.piece(None)]
        if pieces:
            self._add_tokens(pieces[0], event.choice, event.token_ids, event.logprobs)
        return echoed + [self._chunk(event.choice, fields) for fields in pieces]

    def _add_tokens(
        self, fields: dict[str, Any], choice: int, token_ids: Sequence[int], found: Logprobs
    ) -> None:
        """Add what the caller wants to know of the next tokens of a choice."""
        writer = self._writer
        if writer.wants_logprobs:
            logprobs = writer.shape.logprobs(writer.vocabulary, token_ids, found, self._offsets[choice])
            self._offsets[choice] += sum(map(len, logprobs.get("tokens", ())))
            fields["logprobs"] = logprobs
        if self._body.return_token_ids:
            fields["token_ids"] = list(token_ids)

    def _pieces(self, choice: int, deltas: Sequence[Delta]) -> list[dict[str, Any]]:
        shape, pieces = self._writer.shape, []
        for delta in deltas:
            if isinstance(delta, ToolCallBegun | ToolCallEnded):
                self._cut_calls.setdefault(choice, CutCalls()).add(delta)
            if isinstance(delta, ToolCallBegun) and shape.names_calls:
                self._callers.add(choice)
            if not isinstance(delta, ToolCallEnded):
                pieces.append(shape.piece(delta))
        return pieces

    def _end(self, end: ChoiceFinished) -> list[bytes]:
        """Return a choice's end; that of the last one waits for the summary, which it carries."""
        pieces = self._pieces(end.choice, end.deltas)
        rest = self._echoed(end.choice) + [self._chunk(end.choice, fields) for fields in pieces]
        self._left -= 1
        if finish_reason(end.reason) is None or self._left == 0:
            self._last_end = self._last_end or end
            return rest
        return [*rest, self._chunk(end.choice, self._ended(end))]

    def _finish(self, finished: Finished) -> list[bytes]:
        end = self._last_end
        assert end is not None
        if finish_reason(end.reason) is None:
            raise ApiError(early_end(end.reason, finished.error))
        outcome = outcome_json(self._running.accepted.request_id, finished, self._running.resumes)
        self.finished = finished
        return [self._chunk(end.choice, self._ended(end), baton=outcome)]

    def _ended(self, end: ChoiceFinished) -> dict[str, Any]:
        if self._echo is not None and self._echo.alone:
            end = _at_limit(end.choice)
        has_cut_call = bool(self._cut_calls.get(end.choice))
        ending = ending_json(end, has_calls=end.choice in self._callers, has_cut_call=has_cut_call)
        return self._writer.shape.piece(None) | ending

    def _chunk(self, index: int, fields: dict[str, Any], **more: Any) -> bytes:
        choice = {"index": self._first_index + index, "logprobs": None, "finish_reason": None} | fields
        message: dict[str, Any] = self._head | {"choices": [choice]} | more
        if index in self._without_prompt:
            self._without_prompt.discard(index)
            choice |= self._writer.prompt(self._place, in_choice=True)
            message |= self._writer.prompt(self._place, in_choice=False)
        if self._body.counts_usage:
            message["usage"] = usage_json(self._running.accepted.prompt_tokens, self._num_output)
        elif self._body.includes_usage:
            message["usage"] = None
        return sse(message)
