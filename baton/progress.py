"""Keep track of one generation's events, check that no token is lost or repeated, and collect them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TypeVar

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
    Tokens,
)

E = TypeVar("E")

MAX_TAKEN_BACK = 3
"""How often a generation without tokens takes its request back from an earlier caller."""


class Progress:
    """Everything received for one request, over all of its sessions, in order of arrival."""

    def __init__(self, num_choices: int) -> None:
        self._num_choices = num_choices
        # Filled as choices arrive: a caller may ask for billions, which the fleet then refuses.
        self._token_ids: dict[int, array[int]] = {}
        self._accepted = False
        self._fingerprint = ""
        self._has_deltas = False
        self.failed_attempts = 0
        """The count that the last router reported; a resumption passes it on."""
        self.session = 0
        """The session of the newest call. Its router may have moved it to a later one."""
        self._taken_back = 0
        self._finished: dict[int, ChoiceFinished] = {}
        self.num_prompt_logprobs = 0

    @property
    def started(self) -> bool:
        """Whether any event arrived. From then on the request is resumed, not sent again."""
        return self._accepted or any(self._token_ids.values())

    @property
    def has_tokens(self) -> bool:
        return any(self._token_ids.values())

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self._token_ids.values()))

    def received(self) -> dict[int, Sequence[int]]:
        """Return the tokens of every choice that has any."""
        return {choice: ids.tolist() for choice, ids in self._token_ids.items() if ids}

    def next_session(self) -> None:
        """Number the next call, which repeats the first one if there were no events.

        Each Resume is a session of its own: another router may still be at work on the one before it.
        """
        if self.started or self.session:
            self.session += 1

    def take_back(self, session: int) -> bool:
        """Take the request back from an earlier caller, who resumed it in this session.

        Return False if it stays with the other one: this generation has had tokens, or the session is not
        known. What the other one sent may come in several calls, and late, also after this one was accepted.
        Two that both begin must not take the request from each other for ever.
        """
        self._taken_back += 1
        has_begun = self.has_tokens or self.num_prompt_logprobs or self._finished
        if has_begun or not session or self._taken_back > MAX_TAKEN_BACK:
            return False
        self.session = max(self.session, session) + 1
        return True

    def goes_on(self, first_index: int) -> bool:
        """Return True if tokens from this index on are the next ones of the first choice."""
        return first_index == len(self._tokens_of(0)) and not self._finished

    def extend(self, token_ids: Sequence[int]) -> None:
        """Record tokens of the first choice that go on."""
        self._token_ids[0].extend(token_ids)

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
            self._has_deltas = accepted.has_deltas
        elif "" != accepted.fingerprint != self._fingerprint != "":
            raise Internal(
                f"the generation began with weights {self._fingerprint} and would go on with "
                f"{accepted.fingerprint}"
            )
        return first

    def lacks_deltas(self, accepted: Accepted) -> bool:
        """Return True if a session would go on without deltas, at an older router."""
        return self._has_deltas and not accepted.has_deltas

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
        missing = sorted(set(range(self._num_choices)) - set(self._finished))
        if missing:
            raise Internal(f"the generation ended without an end of choices {missing}")

    def _tokens_of(self, choice: int) -> array[int]:
        if choice >= self._num_choices:
            raise Internal(f"choice {choice} arrived, but {self._num_choices} were requested")
        return self._token_ids.setdefault(choice, array("I"))


def completion_of(events: Sequence[Event], num_choices: int, resumes: int) -> Completion:
    """Return what a stream's events add up to. Raises `Internal` if the stream is incomplete."""
    accepted, finished = _only(Accepted, events), _only(Finished, events)
    if not accepted or not finished:
        raise Internal("the stream ended without being accepted or finished")
    return Completion(
        request_id=accepted[0].request_id,
        seed=accepted[0].seed,
        choices=tuple(_choice(index, events) for index in range(num_choices)),
        finished=finished[-1],
        resumes=resumes,
        prompt_logprobs=tuple(part for piece in _only(PromptLogprobs, events) for part in piece.logprobs),
        tool_format=accepted[0].tool_format,
        reasoning_format=accepted[0].reasoning_format,
        reasoning_open=accepted[0].reasoning_open,
        has_deltas=accepted[0].has_deltas,
    )


def _only(kind: type[E], events: Sequence[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def _choice(index: int, events: Sequence[Event]) -> Choice:
    pieces = [tokens for tokens in _only(Tokens, events) if tokens.choice == index]
    end = next((end for end in _only(ChoiceFinished, events) if end.choice == index), None)
    return Choice(
        index=index,
        text="".join(tokens.text for tokens in pieces),
        token_ids=tuple(token_id for tokens in pieces for token_id in tokens.token_ids),
        finish_reason=FinishReason.FAILED if end is None else end.reason,
        logprobs=tuple(part for tokens in pieces for part in tokens.logprobs),
        stop_string=None if end is None else end.stop_string,
        stop_token_id=None if end is None else end.stop_token_id,
        deltas=tuple(delta for tokens in pieces for delta in tokens.deltas)
        + (() if end is None else end.deltas),
    )
