"""From a body to an accepted generation, and from its events to a response, whole or as a stream."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from baton.errors import BatonError
from baton.types import Finished, Queued
from baton.types.deltas import TextDelta
from baton.wire.fields import shown
from gateway.responses.convert import check, generation_of, param_of, repeated
from gateway.responses.draft import Draft, replayed, unix_s
from gateway.responses.events import Event
from gateway.responses.items import MAX_ITEMS, REFERENCE, Item, read_items
from gateway.responses.keeping import Keeping
from gateway.responses.schema import ResponsesBody
from gateway.responses.store import Record, ResponseStore
from gateway.serving.bodies import converted
from gateway.serving.direct import Frames, Line
from gateway.serving.errors import ApiError, invalid, needs_redis, no_such
from gateway.serving.fleet import Fleets
from gateway.serving.generations import ID_HEADER, Generation, Running
from gateway.serving.request_log import problem_to_tell
from gateway.serving.slo import comment
from runtime.state.errors import StoreUnavailable

MAX_READ = 8
"""Responses that one request may have read. The newest one usually has all items of those before it."""
_NUMBER = b"0}\n\n"
"""The end of an event whose number is 0."""
_OWN_SECRET = secrets.token_bytes(32)
"""For ids without Redis, where nothing is kept."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A response to make, unless `known` is what the same request received before."""

    generation: Generation
    keeping: Keeping
    known: Record | None


async def ask(request: Request, body: ResponsesBody, fleets: Fleets, store: ResponseStore | None) -> Asked:
    """Return what a request's body asks for. Raises `ApiError`, `BatonError` and `StoreUnavailable`."""
    headers = request.headers
    await converted(request, check, body)
    model = await fleets.model(body.model)
    key = headers.get(ID_HEADER, "")
    owner = await _owner(key, store) if key else uuid.uuid4().hex
    items = await converted(request, read_items, body.input, owner)
    refers = any(item["type"] == REFERENCE for item in items)
    needs_state = refers or body.previous_response_id is not None
    if store is None and (body.store or needs_state):
        raise needs_redis("responses that are stored")
    keeps = store is not None and body.store is not False and (bool(body.store) or not store.is_away)
    tenant = await fleets.tenant() if keeps or needs_state else ""
    if refers:
        assert store is not None
        items = await _resolved(items, tenant, store)
    earlier: list[Item] = []
    if body.previous_response_id is not None:
        assert store is not None
        earlier = await _conversation(store, tenant, body.previous_response_id)
        if len(earlier) + len(items) > MAX_ITEMS:
            have = f"input has {len(items)} items, and the conversation {len(earlier)} before them"
            raise invalid("input", f"{have}; accepted: up to {MAX_ITEMS} together")
    conversation, most_tokens = [*earlier, *items], model.facts.max_context_tokens
    generation = await converted(
        request, generation_of, body, conversation, len(earlier), headers, key or owner, most_tokens
    )
    generation = replace(generation, model=model)
    head = {
        "id": f"resp_{owner}",
        "object": "response",
        "created_at": unix_s(),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": model.name,
        "output": [],
        "status": "in_progress",
        "store": keeps,
        "usage": None,
    }
    digest, told = await converted(request, _told, body)
    record = Record(head | told, earlier, items, key or owner, digest)
    keeping = Keeping(store if keeps else None, tenant, record, is_demanded=bool(body.store))
    return Asked(generation, keeping, await _known(keeping) if key else None)


def _told(body: ResponsesBody) -> tuple[str, dict[str, Any]]:
    """Return a digest of a body, and what its response repeats of it."""
    content = body.model_dump_json(exclude={"stream", "stream_options"})
    return hashlib.blake2b(content.encode()).hexdigest(), repeated(body)


async def _owner(key: str, store: ResponseStore | None) -> str:
    """Return the part of a response's id that is the same for the same Idempotency-Key.

    Who knows the key alone cannot compute it: a key may be a number, and an id opens the response.
    """
    secret = _OWN_SECRET
    if store is not None and not store.is_away:
        with contextlib.suppress(StoreUnavailable):  # what it means that Redis is away is said later
            secret = await store.secret()
    return hashlib.blake2b(key.encode(), key=secret, digest_size=16).hexdigest()


async def _resolved(items: Sequence[Item], tenant: str, store: ResponseStore) -> list[Item]:
    """Return the items with those in place of which references stand, as clients send them for a history.

    Raises `ApiError` that names the reference, and `StoreUnavailable`. Each item may be referred to once, so
    a small body asks for no more text than is stored.
    """
    places: dict[str, str] = {}
    for index, item in enumerate(items):
        if item["type"] != REFERENCE:
            continue
        where = f"input[{index}].id"
        if item["id"] in places:
            earlier = places[item["id"]]
            raise invalid(where, f"{where} is {shown(item['id'])}, as {earlier} is; accepted: each id once")
        places[item["id"]] = where
    known: dict[str, Item] = {}
    num_read = 0
    for name, where in reversed(places.items()):
        if name in known:
            continue
        if num_read == MAX_READ:
            message = f"input refers to items of more than {MAX_READ} responses; accepted: up to {MAX_READ}"
            raise invalid("input", message)
        num_read += 1
        record = await store.find(tenant, _response_of(name))
        known |= {item["id"]: item for item in (record.conversation if record else ())}
        if name not in known:
            raise no_such("item", name, where)
    return [known[item["id"]] if item["type"] == REFERENCE else item for item in items]


def _response_of(name: str) -> str:
    """Return the id of the response that has an item, as `item_id` and `ask` write both."""
    return f"resp_{name.partition('_')[2].rpartition('_')[0]}"


async def _conversation(store: ResponseStore, tenant: str, response_id: str) -> list[Item]:
    previous, name = await store.find(tenant, response_id), "previous_response_id"
    if previous is None:
        message = f"{name} is {shown(response_id)}; accepted: the id of a response that is still stored"
        raise invalid(name, message, code="previous_response_not_found")
    status = previous.response["status"]
    if previous.is_running:
        message = f"{name} is {shown(response_id)}, which is still running; come back"
        code = "previous_response_in_progress"
        raise invalid(name, message, status=409, code=code, retry_after_s=1.0)
    if status not in {"completed", "incomplete"}:
        message = f"{name} is {shown(response_id)}, which is {status}; accepted: one that completed"
        raise invalid(name, message)
    return previous.conversation


async def _known(keeping: Keeping) -> Record | None:
    """Return the response to an earlier request with this key. Raises `ApiError` if it was different."""
    asked, store = keeping.record, keeping.store
    try:
        known = None if store is None else await store.find(keeping.tenant, asked.response["id"])
    except StoreUnavailable:
        return None  # `Keeping.begin` says what that means
    if known is not None and known.digest != asked.digest:
        name = "Idempotency-Key"
        message = f"{name} is in use for another request; accepted: a new one, or the same request"
        raise invalid(name, message, status=409, code="request_id_in_use")
    return known if known is not None and known.is_final else None


async def accepted(asked: Asked) -> Running:
    """Return the generation once the fleet has accepted it. Raises `BatonError` and `StoreUnavailable`."""
    model = asked.generation.model
    assert model is not None, "ask has set it"
    running = await Running.begin(model.fleet, asked.generation)
    try:
        await asked.keeping.begin()
    except BaseException:
        await running.close()
        raise
    return running


async def whole(asked: Asked, running: Running) -> dict[str, Any]:
    """Return the response once it has ended. Raises `ApiError` and `BatonError`."""
    made = Making(asked, running)
    async with aclosing(made.events()) as events:
        async for _ in events:
            pass
    if made.draft.problem is not None:
        await asked.keeping.abandon()  # nobody has heard of it
        raise ApiError(made.draft.problem)
    return made.draft.response


async def stream(asked: Asked, running: Running, line: Line) -> AsyncGenerator[bytes, None]:
    """Yield the events of a stream, an error among them as the last one."""
    made = Making(asked, running)
    running.write_directly(line, made.said)
    async with aclosing(made.events()) as found:
        async for events in found:
            if isinstance(events, Queued):
                yield comment(f"queued, {events.position} ahead")
            else:
                yield made.numbered(events)


async def replay(known: Record, _: Line) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response that has ended before."""
    for number, event in enumerate(replayed(known.response)):
        yield sse(event, number)


def sse(event: Event, number: int) -> bytes:
    """Return one server-sent event."""
    data = json.dumps(event | {"sequence_number": number}, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {data}\n\n".encode()


class Making:
    """A response while its generation runs."""

    def __init__(self, asked: Asked, running: Running) -> None:
        self._keeping = asked.keeping
        self._running = running
        self.draft = Draft(asked.keeping.record.response, running.accepted)
        self._number = 0
        """The number of the next event of a stream."""
        self._frames: Frames | None = None
        """For texts of the item that is open; they lack the number of the event."""

    def numbered(self, events: Sequence[Event]) -> bytes:
        """Return the next events of a stream."""
        self._frames = None  # another item may be open
        first, self._number = self._number, self._number + len(events)
        return b"".join(sse(event, first + place) for place, event in enumerate(events))

    def said(self, deltas: Sequence[TextDelta], num_tokens: int) -> bytes | None:
        """Return the events of tokens that only add text to the open item; None for others."""
        if self._keeping.is_due or not all(map(self.draft.output.goes_on, deltas)):
            return None
        if self._frames is None:
            self._frames = Frames(lambda delta: sse(self.draft.output.added(delta), 0).removesuffix(_NUMBER))
        events = []
        for delta in deltas:
            events.append(b"%b%d}\n\n" % (self._frames.of(delta), self._number))
            self._number += 1
        self.draft.add(deltas, num_tokens)
        return b"".join(events)

    async def events(self) -> AsyncGenerator[list[Event] | Queued, None]:
        """Yield the events as they come. If nobody takes all of them, the generation is cancelled."""
        draft, has_ended = self.draft, False
        try:
            async with aclosing(self._running.events) as received:
                yield draft.opening()
                try:
                    async for event in received:
                        await self._keeping.renew()
                        if isinstance(event, Queued):
                            yield event
                        elif isinstance(event, Finished):
                            request_id = self._running.accepted.request_id
                            yield draft.finish(event, request_id, self._running.resumes)
                        elif found := draft.of(event):
                            yield found
                except (BatonError, ApiError) as error:
                    yield draft.fail(problem_to_tell(error, param_of))
            has_ended = True
            await self._keeping.end(draft.response)
            yield [draft.closing()]
        finally:
            if not has_ended:
                await self._keeping.abandon()
