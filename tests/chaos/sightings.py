"""Reads the messages on the links: which request each belongs to, and the phase of each request."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from baton.v1 import inference_pb2
from baton.worker.v1 import kvtransfer_pb2, worker_pb2
from tests.chaos.network import CLIENT
from tests.chaos.plan import ENDS, Phase, Place, between


class Method(enum.StrEnum):
    """Those whose messages are read; others pass unread."""

    GENERATE = "/baton.v1.InferenceService/Generate"
    RESUME = "/baton.v1.InferenceService/Resume"
    WORK = "/baton.worker.v1.WorkerService/Work"
    OPEN = "/baton.worker.v1.KVTransferService/Open"
    FETCH = "/baton.worker.v1.KVTransferService/Fetch"


class Mark(enum.StrEnum):
    """The meaning of a message for a request."""

    ASKED = "asked"
    """The client's request goes to a router."""
    ACCEPTED = "accepted"
    BOUND = "bound"
    """A prefill worker is told to compute the prompt."""
    EXPECTED = "expected"
    """A decode worker is told to fetch."""
    WORKED = "worked"
    """Any other message between the request's router and a worker that has it."""
    OFFERED = "offered"
    COMMITTED = "committed"
    FETCHED = "fetched"
    """A piece of its blocks."""
    FIRST = "first"
    """The prefill worker reports the first token."""
    REPORTED = "reported"
    """The decode worker reports tokens."""
    DELIVERED = "delivered"
    """Tokens go to the client."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One message, as far as one request is concerned."""

    mark: Mark
    request_id: str
    link: str
    session: int = 0
    attempt: int = 0


@dataclass(slots=True)
class Life:
    """Where a request is: names of processes, empty where it has none."""

    router: str = ""
    prefill: str = ""
    decode: str = ""
    gateway: str = ""
    phase: Phase = Phase.TOKENISE
    session: int = 0
    attempts: set[int] = field(default_factory=set)
    """The numbers of this session's attempts."""
    failed_before: int = 0
    """The attempts of earlier sessions that may have failed: the count goes with the request."""

    def at(self, place: Place, target: str = "") -> str:
        """Return the process it depends on, or what is between two of them.

        `target` is the worker that a message is on its way to, which the request does not have yet.
        """
        if place in ENDS:
            caller, dialled = ENDS[place]
            return between(self.at(caller) or self._client_of(caller), self.at(dialled, target))
        return target or {
            Place.ROUTER: self.router,
            Place.PREFILL: self.prefill,
            Place.DECODE: self.decode,
            Place.REDIS: "redis",
            Place.GATEWAY: self.gateway,
        }.get(place, "")

    @staticmethod
    def _client_of(place: Place) -> str:
        return CLIENT if place is Place.GATEWAY else ""

    def advance(self, seen: Sighting) -> None:
        """The message has passed."""
        match seen.mark:
            case Mark.ASKED:
                self.router, self.prefill, self.decode = seen.link, "", ""
                self.phase = Phase.TOKENISE
                if seen.session != self.session:
                    self.failed_before += max(0, len(self.attempts) - 1)
                    self.session, self.attempts = seen.session, set()
            case Mark.ACCEPTED if self.phase is Phase.TOKENISE:
                self.phase = Phase.QUEUE
            case Mark.BOUND | Mark.EXPECTED if seen.session == self.session:
                if seen.mark is Mark.BOUND:
                    self.prefill = seen.link
                else:
                    self.decode = seen.link
                self.attempts.add(seen.attempt)
                self.phase = Phase.PREFILL
            case Mark.COMMITTED | Mark.FIRST if self.phase is Phase.PREFILL:
                self.phase = Phase.HANDOFF
            case Mark.REPORTED if seen.link == self.decode:
                self.phase = Phase.DECODE
            case _:
                pass


class Call:
    """One gRPC call through a link: which requests its messages are about. Only `lives` are told of."""

    def __init__(self, link: str, method: str, lives: Mapping[str, Life]) -> None:
        self.link, self._method, self._lives = link, method, lives
        self._request_id = ""
        self._handles: dict[int, str] = {}

    def sent(self, message: bytes) -> Sequence[Sighting]:
        """A message to the one who serves."""
        match self._method:
            case Method.GENERATE:
                return self._asked(inference_pb2.GenerateRequest.FromString(message), 0)
            case Method.RESUME:
                resume = inference_pb2.ResumeRequest.FromString(message)
                return self._asked(resume.request, resume.session)
            case Method.WORK:
                return self._commanded(worker_pb2.WorkRequest.FromString(message))
            case Method.OPEN:
                self._request_id = kvtransfer_pb2.OpenRequest.FromString(message).fence.request_id
            case Method.FETCH:
                self._request_id = kvtransfer_pb2.FetchRequest.FromString(message).fence.request_id
        return ()

    def answered(self, message: bytes) -> Sequence[Sighting]:
        """A message from the one who serves."""
        match self._method:
            case Method.GENERATE:
                return self._told(inference_pb2.GenerateResponse.FromString(message).event)
            case Method.RESUME:
                return self._told(inference_pb2.ResumeResponse.FromString(message).event)
            case Method.WORK:
                return self._reported(worker_pb2.WorkResponse.FromString(message))
            case Method.OPEN:
                event = kvtransfer_pb2.OpenResponse.FromString(message).WhichOneof("event")
                marks = {"offer": Mark.OFFERED, "commit": Mark.COMMITTED}
                return self._one(marks[event]) if event in marks else ()
            case Method.FETCH:
                return self._one(Mark.FETCHED)
        return ()

    def _one(self, mark: Mark) -> Sequence[Sighting]:
        return (Sighting(mark, self._request_id, self.link),)

    def _asked(self, request: inference_pb2.GenerateRequest, session: int) -> Sequence[Sighting]:
        self._request_id = request.request_id
        return (Sighting(Mark.ASKED, self._request_id, self.link, session),)

    def _told(self, event: inference_pb2.GenerationEvent) -> Sequence[Sighting]:
        marks = {"accepted": Mark.ACCEPTED, "tokens": Mark.DELIVERED}
        kind = event.WhichOneof("event")
        return self._one(marks[kind]) if kind in marks else ()

    def _commanded(self, message: worker_pb2.WorkRequest) -> Sequence[Sighting]:
        match message.WhichOneof("command"):
            case "prefill":
                return self._dispatched(Mark.BOUND, message.prefill.sequence)
            case "receive":
                return self._dispatched(Mark.EXPECTED, message.receive.sequence)
            case "decode":
                return self._dispatched(Mark.EXPECTED, message.decode.sequence)
        return self._worked()

    def _dispatched(self, mark: Mark, sequence: worker_pb2.SequenceSpec) -> Sequence[Sighting]:
        fence = sequence.fence
        self._handles[sequence.handle] = fence.request_id
        return (Sighting(mark, fence.request_id, self.link, fence.session, fence.attempt),)

    def _reported(self, message: worker_pb2.WorkResponse) -> Sequence[Sighting]:
        mark = Mark.FIRST if self.link.startswith(Place.PREFILL) else Mark.REPORTED
        handles = dict.fromkeys(message.step.tokens.handles)
        found = [
            Sighting(mark, self._handles[handle], self.link) for handle in handles if handle in self._handles
        ]
        return found or self._worked()

    def _worked(self) -> Sequence[Sighting]:
        self._handles = {key: handle for key, handle in self._handles.items() if handle in self._lives}
        return [Sighting(Mark.WORKED, entry, self.link) for entry in dict.fromkeys(self._handles.values())]
