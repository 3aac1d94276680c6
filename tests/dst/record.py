"""Notes what a page shows of a run, while it plays: messages, decisions, faults, and their requests.

A run without a recorder pays nothing for it. Which request a message belongs to is found in the message: by
its name, or by the handle, the listener or the call under which a process knows the request.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from router.core.model.events import Timer
from tests.dst.nodes.client import Heard
from tests.dst.scenario import Fault
from tests.dst.world.network import Network, Trip
from tests.dst.world.process import Process

IN_ORDER = "closed by the other end"
"""The reason with which a call that is over ends its connection."""
LONGEST = 60
"""Characters of one value in a text."""
UNSAID = (
    "listener",
    "listeners",
    "texts",
    "logprobs",
    "gaps_s",
    "matches",
    "choices",
    "indexes",
    "finish_reasons",
    "digest",
    "seed_given",
)
"""Fields of actions and events that tell a reader nothing."""


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that one process did or learned."""

    at: float
    process: str
    text: str
    requests: tuple[str, ...] = ()
    details: str = ""
    kind: str = "core"
    """`core`, or `connection` for one that broke."""


@dataclass(frozen=True, slots=True)
class Life:
    """One process under its name; `end` is None if it outlived the run."""

    process: str
    begin: float
    end: float | None


class Recorder:
    """Keeps what a page shows of a run."""

    def __init__(self) -> None:
        self.messages: list[Trip] = []
        self.events: list[Happened] = []
        self.bands: list[tuple[Fault, float]] = []
        """Faults that struck, and when."""
        self.phases: list[tuple[float, str, str]] = []
        """When which request reached which phase."""
        self.calls: list[tuple[str, Heard]] = []
        """The client of each call, and what it received."""
        self.lives: list[Life] = []
        self._finds = _Finds()

    def watch(self, network: Network) -> None:
        """Note what travels on a network."""
        network.trace = self._sent
        network.trace_broken = lambda process, name, reason: self._learned(network, process, name, reason)

    def end(self, processes: Iterable[Process]) -> None:
        """Note which processes there have been."""
        self.lives = [Life(process.name, process.began_at, process.ended_at) for process in processes]

    def reached(self, now: float, request_id: str, phase: str) -> None:
        self.phases.append((now, request_id, phase))

    def decided(self, now: float, router: str, event: Any, actions: Iterable[Any]) -> None:
        """Note an event of a router's core, and what the core decided."""
        decided = list(actions)
        about = dict.fromkeys(self._finds.about(router, event))
        for action in decided:
            about |= dict.fromkeys(self._finds.about(router, action))
        names = ", ".join(dict.fromkeys(type(action).__name__ for action in decided))
        text = f"{type(event).__name__} → {names or 'nothing'}"
        details = "\n".join([said(event), *(f"→ {said(action)}" for action in decided)])
        self.events.append(Happened(now, router, text, tuple(about), details))

    def _sent(self, trip: Trip, name: object, message: Any) -> None:
        trip.requests = tuple(self._finds.of_message(trip, name, message))
        trip.what = described(trip.what, name, message)
        self.messages.append(trip)

    def _learned(self, network: Network, process: str, name: object, reason: str) -> None:
        if reason != IN_ORDER:
            what, ends = _kind_of(name)
            other = next((end for end in ends if end != process), "")
            text = f"connection for {what} with {other} broke: {reason}"
            about = self._finds.of_call.get(name, ())
            self.events.append(Happened(network.scheduler.now, process, text, about, kind="connection"))


# Which requests something is about


class _Finds:
    """Knows requests by the names that routers and connections have for them."""

    def __init__(self) -> None:
        self.of_call: dict[object, tuple[str, ...]] = {}
        """Requests by the connection of a call, or by its connection and number."""
        self._listeners: dict[tuple[str, int], str] = {}
        self._handles: dict[tuple[str, int], str] = {}

    def of_message(self, trip: Trip, name: object, message: Any) -> list[str]:
        kind, _ = _kind_of(name)
        router = trip.source if trip.source[0] == "r" and trip.source != "redis" else trip.target
        match kind, message:
            case "store", (int(number), _, result):
                found = list(self.about(router, result))
                return found or list(self.of_call.pop((name, number), ()))
            case "store", _:
                found = list(self.about(router, message))
                self.of_call[name, getattr(message, "number", 0)] = tuple(found)
                return found
            case (("work" | "notices" | "probe" | "ack"), (_, content, *_)):
                return list(self.about(router, content))
            case (("work" | "notices" | "probe" | "ack"), _):
                return list(self.about(router, message))
        found = list(dict.fromkeys(self.about(router, message)))
        if found:
            self.of_call[name] = tuple(found)
        return list(self.of_call.get(name, ()))

    def about(self, router: str, thing: Any) -> Iterator[str]:
        """Yield the requests that an event, an action or a message names, perhaps several times."""
        if isinstance(thing, str):
            yield from _of_key(thing)
        elif isinstance(thing, (list, tuple)):
            for each in thing:
                yield from self.about(router, each)
        elif thing is not None:
            yield from self._in_fields(router, thing)

    def _in_fields(self, router: str, thing: Any) -> Iterator[str]:
        named = thing if hasattr(thing, "request_id") else getattr(thing, "request", None)
        request_id = getattr(named, "request_id", "")
        if request_id:
            yield request_id
            self._remember(self._listeners, router, getattr(thing, "listener", None), request_id)
        for name in ("request_key", "key", "about"):
            yield from self.about(router, getattr(thing, name, None))
        fence = getattr(thing, "fence", None)
        if fence is not None and fence.request_id:
            self._remember(self._handles, router, getattr(thing, "handle", None), fence.request_id)
            yield fence.request_id
        for name, known in (("listener", self._listeners), ("handle", self._handles)):
            yield from self._known(known, router, [getattr(thing, name, None)])
        yield from self._known(self._listeners, router, getattr(thing, "listeners", ()))
        for name in ("handles", "prefilled", "preempted", "resumed", "parked", "released"):
            yield from self._known(self._handles, router, getattr(thing, name, ()))
        for name in ("spec", "part", "parts", "entry", "tokens", "failures", "runs", "request", "timer"):
            yield from self.about(router, getattr(thing, name, None))

    @staticmethod
    def _remember(known: dict[tuple[str, int], str], router: str, number: Any, request_id: str) -> None:
        if isinstance(number, int):
            known[router, number] = request_id

    @staticmethod
    def _known(known: dict[tuple[str, int], str], router: str, numbers: Any) -> Iterator[str]:
        for number in numbers if isinstance(numbers, Sequence) else ():
            if isinstance(number, int) and (router, number) in known:
                yield known[router, number]


def _of_key(text: str) -> Iterator[str]:
    """Yield the request of a group's key, which has its tenant, its request and its first choice."""
    parts = text.split("/")
    if len(parts) == 3:
        yield parts[1]


def _kind_of(name: object) -> tuple[str, tuple[str, ...]]:
    """Return what a connection or datagram is for, and the processes at its ends."""
    match name:
        case ((str(kind), *ends), int()) | (str(kind), *ends):
            return kind, tuple(str(end) for end in ends)
    return "", ()


# Texts


def described(what: str, name: object, message: Any) -> str:
    """Return what a message is, in few words."""
    match message:
        case ("report", event):
            return _report(event)
        case ("end", code, details, _):
            return f"ends: {code.name} {_short(details)}".rstrip() if details else f"ends: {code.name}"
        case ("message", content):
            return _response(content)
        case (int(), ("error" | "forgotten"), found):
            return f"{what}: {'another epoch' if found is None else type(found).__name__}"
        case None:
            return what or _kind_of(name)[0]
    attempt = getattr(getattr(getattr(message, "spec", None), "fence", None), "attempt", None)
    return what if attempt is None else f"{what}, attempt {attempt}"


def _report(event: Any) -> str:
    num_tokens = len(event.tokens.handles)
    parts = [f"{num_tokens} token{'s' if num_tokens > 1 else ''}"] if num_tokens else []
    parts += [f"failed, {failure.reason.name}: {_short(failure.message)}" for failure in event.failures]
    parts += [
        f"{name} {list(held)}"
        for name in ("prefilled", "parked", "preempted", "resumed", "released")
        if (held := getattr(event, name))
    ]
    return "report: " + (", ".join(parts) or "load")


def _response(content: Any) -> str:
    """Return what a server's message is: the kind of event, if it is one of a stream."""
    name = type(content).__name__
    event = getattr(content, "event", None)
    if event is None or "event" not in event.DESCRIPTOR.oneofs_by_name:
        return name
    return f"{name}: {event.WhichOneof('event')}"


def said(thing: Any) -> str:
    """Return an event or an action with those of its fields that are short."""
    parts = []
    for name in getattr(type(thing), "__dataclass_fields__", ()):
        held = getattr(thing, name)
        if name == "spec":
            parts += [
                f"handle={held.handle}",
                f"attempt={held.fence.attempt}",
                f"choices={list(held.choices)}",
            ]
        elif (
            name not in UNSAID and held not in (None, "", (), [], {}, False) and len(_value(held)) <= LONGEST
        ):
            parts.append(f"{name}={_value(held)}")
    return f"{type(thing).__name__}({', '.join(parts)})"


def _value(held: Any) -> str:
    if isinstance(held, float):
        return f"{held:.6g}"
    if isinstance(held, enum.Enum):
        return held.name
    return said(held) if isinstance(held, Timer) else str(held)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
