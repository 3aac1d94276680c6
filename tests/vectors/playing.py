"""Play the vectors in this folder: what routers do, and what a caller of an SDK and the routers must see.

A vector is an object of a JSON file:

    name     a behaviour
    routers  each with `scripts`, played one for each Generate or Resume, the last one again and again;
             `answers` of its other calls by name; `running`, the ids that Cancel knows; or `stopped`.
             It reads the scripts' texts as routers do, unless `reads` is false
    client   options of the client; `addresses` instead of the routers' own
    call     the `method` with its arguments; `abort_after` or `leave_after` so many events; `times` a prompt;
             `parsed` is a stream taken apart, and `message_of` makes a message of a completion's `choice`
    sees     what the caller sees: `events`, a `result` or an `error`, `resumes`, `retries`, `aborted`
    calls    for each router, the calls that it sees, in order
    takes    the least time that it takes, in seconds

A step of a script is an event as protobuf's JSON, or one of:

    status      ends the call: `code`, `message`, `details` by the names of their types
    end         ends the call as if all had been said
    hang        says nothing more
    cut_after   breaks the connection when the caller has seen so many events
    stop_after  stops the router then

What is expected is a part of what is seen: an object may have more fields, and a text that begins with ~ is a
regular expression. Names are those of the Python SDK.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2

from baton.v1 import errors_pb2, inference_pb2
from tests.baton.scripted_service import HANG, Act, Fail, Pb, ScriptedRouter, Silence, Step
from tests.patience import PATIENCE_S
from tests.vectors.link import Link

Vector = Mapping[str, Any]
Seen = Callable[[], None]
"""To be called for each event that the caller has seen."""
Observe = Callable[[Vector, Sequence[str], Seen], Awaitable[Any]]
"""Make the call of a vector at these addresses, close the client, and return what the caller saw."""

_DETAILS: dict[str, type[Message]] = {
    "BadRequest": error_details_pb2.BadRequest,
    "ErrorInfo": error_details_pb2.ErrorInfo,
    "RetryInfo": error_details_pb2.RetryInfo,
    "SloRefusal": errors_pb2.SloRefusal,
}
_CALLS = {"Generate", "Resume", "Cancel", "Quote", "CountTokens", "Detokenize", "ListModels"}


def vectors() -> list[Vector]:
    files = sorted(Path(__file__).parent.glob("*.json"))
    return [vector for file in files for vector in json.loads(file.read_text(encoding="utf-8"))]


async def play(vector: Vector, observe: Observe) -> None:
    """Make the call of a vector, and compare what is seen with what is expected."""
    audience = _Audience()
    async with contextlib.AsyncExitStack() as stack:
        stages = [
            await stack.enter_async_context(_stage(given, audience)) for given in vector.get("routers", ())
        ]
        addresses = vector.get("client", {}).get("addresses", [link.address for _, link in stages])
        began_at = time.monotonic()
        seen = await observe(vector, addresses, audience.saw)
        took_s = time.monotonic() - began_at
    calls = [_calls_of(router) for router, _ in stages]
    differences = [
        *_differences(vector.get("sees", {"error": None}), seen, "sees"),
        *_differences(vector.get("calls", calls), calls, "calls"),
        *_other_content(calls),
    ]
    assert not differences, "\n".join([*differences, json.dumps(seen), json.dumps(calls)])
    assert took_s >= vector.get("takes", 0.0)


class _Audience:
    """Counts the events that the caller has seen."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Event()

    def saw(self) -> None:
        self._count += 1
        self._changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self._count < count:
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def _stage(given: Mapping[str, Any], audience: _Audience) -> AsyncIterator[tuple[ScriptedRouter, Link]]:
    """Run a router, with a link to it."""
    answers = {name: _answer(name, answer) for name, answer in given.get("answers", {}).items()}
    async with ScriptedRouter(**answers) as router, Link(router.address) as link:
        router.running = set(given.get("running", ()))
        router.reads = given.get("reads", True)
        router.scripts = [
            [_step(step, audience, router, link) for step in script] for script in given.get("scripts", ())
        ] or [[HANG]]
        if given.get("stopped"):
            await link.stop()
        yield router, link


def _step(given: Mapping[str, Any], audience: _Audience, router: ScriptedRouter, link: Link) -> Step:
    match given:
        case {"status": status}:
            return _fail(status)
        case {"end": _}:
            return Silence()
        case {"hang": _}:
            return HANG
        case {"cut_after": count}:
            return Act(partial(_then, audience, count, link.cut))
        case {"stop_after": count}:
            return Act(partial(_then, audience, count, link.stop))
    return json_format.ParseDict(dict(given), Pb())


async def _then(audience: _Audience, count: int, act: Callable[[], Awaitable[None]]) -> None:
    await audience.until(count)
    await act()


def _answer(name: str, given: Mapping[str, Any]) -> Message | Fail:
    if "status" in given:
        return _fail(given["status"])
    return json_format.ParseDict(dict(given), getattr(inference_pb2, f"{name}Response")())


def _fail(status: Mapping[str, Any]) -> Fail:
    details = [
        json_format.ParseDict(value, _DETAILS[kind]())
        for detail in status.get("details", ())
        for kind, value in detail.items()
    ]
    return Fail(grpc.StatusCode[status["code"]], status.get("message", "scripted"), tuple(details))


def _calls_of(router: ScriptedRouter) -> list[dict[str, Any]]:
    """Return the calls in order; fields that are not set have their defaults."""
    to_dict = partial(
        json_format.MessageToDict, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return [{name: to_dict(request)} for name, request in router.heard_calls if name in _CALLS]


def _other_content(calls: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the differences between the requests of one generation, which each call must repeat."""
    requests = [
        request.get("request", request)
        for router in calls
        for call in router
        for name, request in call.items()
        if name in {"Generate", "Resume"}
    ]
    return [f"a call has other content: {request}" for request in requests if request != requests[0]]


def _differences(expected: Any, seen: Any, where: str) -> list[str]:
    if isinstance(expected, Mapping) and isinstance(seen, Mapping):
        return [
            difference
            for name, value in expected.items()
            for difference in _differences(value, seen.get(name), f"{where}.{name}")
        ]
    if isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        return [
            difference
            for place, value in enumerate(expected)
            for difference in _differences(value, seen[place], f"{where}[{place}]")
        ]
    return [] if _fits(expected, seen) else [f"{where} is {seen!r}, expected {expected!r}"]


def _fits(expected: Any, seen: Any) -> bool:
    if isinstance(expected, str) and expected.startswith("~"):
        return isinstance(seen, str) and re.search(expected[1:], seen) is not None
    if isinstance(expected, str) and isinstance(seen, list):
        return expected in seen
    return bool(expected == seen)
