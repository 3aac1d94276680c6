"""Settle before a body is read who asks, from where, and whether there is room for it.

    head ──▶ one credential? ──▶ no foreign page? ──▶ an accepted key? ──▶ room for the body? ──▶ app
                  400                403, 415               401                429, 503

A router judges every key. The gateway asks one beforehand for bodies that are large, or whose length is
unknown, and for bodies without any credential. Small bodies whose keys were not asked about share the
smallest part of the room; a caller who has proven a key has a part of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.errors import BatonError
from gateway.errors import ApiError, invalid
from gateway.fleet import caller_key
from gateway.serving.bounds import LARGE_BYTES
from gateway.serving.keys import Keys, caller_of
from gateway.serving.origins import UPLOAD, Rules, check_caller
from gateway.serving.requests import record
from gateway.serving.shares import UNPROVEN, Room, Shares

_CREDENTIALS = (b"authorization", b"x-api-key")
_ONCE = frozenset({*_CREDENTIALS, b"host", b"origin"})
_READ = frozenset(
    {
        *_ONCE,
        b"sec-fetch-site",
        b"content-type",
        b"content-length",
        b"transfer-encoding",
    }
)


class Door:
    """Serves `app` behind these checks. `respond` makes the response to an error."""

    def __init__(
        self,
        app: ASGIApp,
        rules: Rules,
        keys: Keys,
        bodies: Shares,
        max_body_bytes: int,
        respond: Callable[[str, ApiError | BatonError], Response],
    ) -> None:
        self._app = app
        self._rules = rules
        self._keys = keys
        self._bodies = bodies
        self._max_body_bytes = max_body_bytes
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        room: Room | None = None
        try:
            headers = _read(scope)
            authorization, x_api_key = map(headers.get, _CREDENTIALS)
            key = "" if authorization is None and x_api_key is None else _key_of(authorization, x_api_key)
            caller_key.set(key)
            check_caller(self._rules, scope["method"], scope["path"], headers)
            declared, is_chunked = int(headers.get(b"content-length", 0)), b"transfer-encoding" in headers
            if declared or is_chunked:
                room = await self._room(scope, key, declared, is_chunked=is_chunked)
        except (ApiError, BatonError) as error:
            await self._respond(scope["path"], error)(scope, receive, send)
            return
        if room is None:
            await self._app(scope, receive, send)
            return
        known = record.get()
        if known is not None:
            known.on_start = room.give_back
        try:
            await self._app(scope, _counting(receive, room) if is_chunked else receive, send)
        finally:
            room.give_back()

    async def _room(self, scope: Scope, key: str, declared: int, *, is_chunked: bool) -> Room:
        """Return the room for a body. Raises `ApiError`, or `BatonError` for a key that is not accepted."""
        # A body that is too large is refused unread, and a file has room of its own.
        size = 0 if scope["path"] == UPLOAD or declared > self._max_body_bytes else declared
        client = scope["client"]
        room = Room(self._bodies, client[0] if client else "")
        if self._keys.are_needed:
            is_small = declared <= LARGE_BYTES and not is_chunked
            if key and is_small and not self._keys.is_proven(key):
                unproven = Room(self._bodies, "", UNPROVEN)
                if unproven.has_grown(size):
                    return unproven
            await self._keys.prove(key)
            if key:
                room = Room(self._bodies, caller_of(key))
        room.grow(size)
        return room


def _counting(receive: Receive, room: Room) -> Receive:
    """Return what receives a body of unknown length. It raises `ApiError` where there is no room."""

    async def received() -> Message:
        message = await receive()
        room.grow(len(message.get("body", b"")))
        return message

    return received


def _read(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers that are looked at here. Raises `ApiError` for a second credential."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _READ:
            if name in found and name in _ONCE:
                raise invalid(name.decode(), f"{name.decode()} is set twice; accepted: once")
            found[name] = value
    return found


def _key_of(authorization: bytes | None, x_api_key: bytes | None) -> str:
    return key_of((authorization or b"").decode("latin-1"), (x_api_key or b"").decode("latin-1"))


def key_of(authorization: str, x_api_key: str) -> str:
    """Return the API key or JWT in a request's headers; empty if there is none. Raises `ApiError` for two."""
    scheme, _, rest = authorization.partition(" ")
    bearer, key = rest.strip() if scheme.lower() == "bearer" else "", x_api_key.strip()
    if bearer and key and bearer != key:
        raise invalid("x-api-key", "authorization and x-api-key have different keys; accepted: one key")
    text = bearer or key
    # gRPC metadata takes no other characters, and no key has them.
    return text if text.isascii() and text.isprintable() and " " not in text else ""
