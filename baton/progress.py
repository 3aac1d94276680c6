"""Keep track of one generation's events, check that no token is lost or repeated, and collect them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from baton.errors import Internal, StreamCorrupt
from baton.types import (
    Accepted,
    Choice,
    ChoiceFinished,
    Completion,
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    TokenLogprobs,
    Tokens,
)


class Progress:
    """Everything received for one request, over all of its sessions, in order of arrival."""

    def __init__(self, num_choices: int) -> None:
        self._token_ids = {choice: array("I") for choice in range(num_choices)}
        self._accepted = False
        self._fingerprint = ""
        self.failed_attempts = 0
        """The count that the last router reported; a resumption passes it on."""
        self._finished: dict[int, ChoiceFinished] = {}
        self.num_prompt_logprobs = 0

    @property
    def started(self) -> bool:
        """Whether any event arrived. From then on the request is resumed, not sent again."""
        return self._accepted or any(self._token_ids.values())

    @property
    def has_tokens(self) -> bool:
        return any(self._token_ids.values())

    def received(self) -> dict[int, Sequence[int]]:
        """Return the tokens of every choice that has any."""
        return {choice: ids.tolist() for choice, ids in self._token_ids.items() if ids}

    def admit(self, event: Event) -> bool:
        """Record an event. Return False if a resumed session only repeats it.

        Raises `StreamCorrupt` for a lost or repeated token, `Internal` for events that contradict each other.
        """
        match event:
            case Tokens():
                self._add_tokens(event)
            case PromptLogprobs():
                self._add_prompt_logprobs(event)
            case Accepted():
                return self._accept(event)
            case ChoiceFinished():
                return self._finish(event)
            case Finished(error=""):
                self._check_all_ended()
        return True

    def _accept(self, accepted: Accepted) -> bool:
        first, self._accepted = not self._accepted, True
        if first:
            self._fingerprint = accepted.fingerprint
        elif "" != accepted.fingerprint != self._fingerprint != "":
            raise Internal(
                f"the generation began with weights {self._fingerprint} and would go on with "
                f"{accepted.fingerprint}"
            )
        return first

    def _add_tokens(self, tokens: Tokens) -> None:
        received = self._tokens_of(tokens.choice)
        if tokens.first_index != len(received):
            raise StreamCorrupt(tokens.choice, len(received), tokens.first_index)
        if tokens.choice in self._finished:
            raise Internal(f"choice {tokens.choice} went on after its end")
        received.extend(tokens.token_ids)

    def _add_prompt_logprobs(self, piece: PromptLogprobs) -> None:
        if piece.first_index != 1 + self.num_prompt_logprobs:
            raise Internal(
                f"log-probabilities of the prompt went on at token {piece.first_index}, "
                f"expected {1 + self.num_prompt_logprobs}"
            )
        self.num_prompt_logprobs += len(piece.logprobs)

    def _finish(self, end: ChoiceFinished) -> bool:
        received = len(self._tokens_of(end.choice))
        if end.output_tokens != received:
            raise StreamCorrupt(end.choice, received, end.output_tokens)
        known = self._finished.setdefault(end.choice, end)
        return known is end

    def _check_all_ended(self) -> None:
        missing = sorted(set(self._token_ids) - set(self._finished))
        if missing:
            raise Internal(f"the generation ended without an end of choices {missing}")

    def _tokens_of(self, choice: int) -> array[int]:
        if choice not in self._token_ids:
            raise Internal(f"choice {choice} arrived, but {len(self._token_ids)} were requested")
        return self._token_ids[choice]


class Collector:
    """Collects the events of a stream into a `Completion`."""

    def __init__(self, num_choices: int) -> None:
        self._accepted: Accepted | None = None
        self._texts: list[list[str]] = [[] for _ in range(num_choices)]
        self._token_ids: list[list[int]] = [[] for _ in range(num_choices)]
        self._logprobs: list[list[TokenLogprobs]] = [[] for _ in range(num_choices)]
        self._ends: dict[int, ChoiceFinished] = {}
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._finished: Finished | None = None

    def add(self, event: Event) -> None:
        match event:
            case Tokens():
                self._texts[event.choice].append(event.text)
                self._token_ids[event.choice].extend(event.token_ids)
                self._logprobs[event.choice].extend(event.logprobs)
            case PromptLogprobs():
                self._prompt_logprobs.extend(event.logprobs)
            case Accepted():
                self._accepted = event
            case ChoiceFinished():
                self._ends[event.choice] = event
            case Finished():
                self._finished = event

    def completion(self, resumes: int) -> Completion:
        """Return the completion. Raises `Internal` if the stream is incomplete."""
        if self._accepted is None or self._finished is None:
            raise Internal("the stream ended without being accepted or finished")
        return Completion(
            request_id=self._accepted.request_id,
            seed=self._accepted.seed,
            choices=tuple(self._choice(index) for index in range(len(self._texts))),
            finished=self._finished,
            resumes=resumes,
            prompt_logprobs=tuple(self._prompt_logprobs),
        )

    def _choice(self, index: int) -> Choice:
        end = self._ends.get(index)
        return Choice(
            index=index,
            text="".join(self._texts[index]),
            token_ids=tuple(self._token_ids[index]),
            finish_reason=FinishReason.FAILED if end is None else end.reason,
            logprobs=tuple(self._logprobs[index]),
            stop_string=None if end is None else end.stop_string,
            stop_token_id=None if end is None else end.stop_token_id,
        )
