"""Settle before a body is read who asks, from where, and whether there is room for it.

    head ──▶ one credential? ──▶ no foreign page? ──▶ an accepted key? ──▶ room for the body? ──▶ app
                  400                403, 415               401                429, 503

A router judges every key. The gateway asks one beforehand for bodies that are large, or whose length is
unknown, and for bodies without any credential. Small bodies whose keys were not asked about share the
smallest part of the room; a caller who has proven a key has a part of its own.

The gateway knows no keys: it asks a router, once a minute for a key, which checks again what is let in.

A page of any site can make its visitor's browser send requests to this gateway. The browser names the page's
origin, and by DNS rebinding the page can give the gateway's address a name of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.errors import BatonError, NotAllowed
from baton.wire.fields import shown
from gateway.serving.bodies import LARGE_BYTES
from gateway.serving.errors import ApiError, Problem, invalid
from gateway.serving.fleet import Fleets, caller_key
from gateway.serving.request_log import record
from gateway.serving.shares import UNPROVEN, Room, Shares

ANY = "*"
UPLOAD = "/v1/files"
"""Takes forms, and checks that itself."""
_EXPOSED = (
    "x-request-id",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-baton-at-risk",
    "x-baton-ignored",
    "x-baton-predicted-tpot-ms",
    "x-baton-predicted-ttft-ms",
    "x-baton-seed",
)
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_FOREIGN_SITES = frozenset({b"cross-site", b"same-site"})


def crossing(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return an application whose responses pages of these origins may read (CORS)."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=_EXPOSED,
    )


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which browsers may use a gateway.

    hosts         names under which it is reached, beside `localhost` and IP addresses
    origins       origins of pages that may use it, such as `https://chat.example`; `*` for any
    checks_names  whether other names are refused. A name proves nothing where TLS has checked it already
    is_https      whether callers see a certificate
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    checks_names: bool = True
    is_https: bool = False


def check_caller(rules: Rules, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
    """Raise `ApiError` for a request that a foreign page may have made, or whose body is no JSON."""
    host = headers.get(b"host", b"")
    if rules.checks_names and host and not _is_own(rules, host):
        accepted = "an IP address, 'localhost', or a name that --allow-host gives"
        raise _forbidden("host", host, accepted, "host_not_allowed")
    origin = headers.get(b"origin")
    if origin is not None and not _is_allowed(rules, origin, host):
        raise _forbidden("origin", origin, "an origin that --allow-origin gives", "origin_not_allowed")
    if method in _SAFE_METHODS:
        return
    site = headers.get(b"sec-fetch-site")
    if origin is None and site in _FOREIGN_SITES and ANY not in rules.origins:
        raise _forbidden("sec-fetch-site", site, "'same-origin', or a program", "origin_not_allowed")
    kind = headers.get(b"content-type")
    if kind is not None and path != UPLOAD and not _is_json(kind):
        accepted = "application/json (curl: -H 'content-type: application/json')"
        message = f"content-type is {shown(kind.decode('latin-1'))}; accepted: {accepted}"
        raise invalid("content-type", message, status=415, code="unsupported_content_type")


def _is_json(kind: bytes) -> bool:
    name = kind.partition(b";")[0].strip().lower()
    return name == b"application/json" or name.endswith(b"+json")


def _forbidden(header: str, value: bytes, accepted: str, code: str) -> ApiError:
    message = f"{header} is {shown(value.decode('latin-1'))}; accepted: {accepted}"
    return ApiError(Problem(403, "permission_error", message, param=header, code=code))


def _is_own(rules: Rules, host: bytes) -> bool:
    name = _name_of(host)
    return name in rules.hosts or _is_unambiguous(name)


def _is_allowed(rules: Rules, origin: bytes, host: bytes) -> bool:
    if ANY in rules.origins or origin.decode("latin-1").lower() in rules.origins:
        return True
    scheme, _, authority = origin.partition(b"://")
    if scheme != (b"https" if rules.is_https else b"http") or authority.lower() != host.lower():
        return False
    return rules.is_https or _is_own(rules, host)


@lru_cache(maxsize=1024)
def _name_of(host: bytes) -> str:
    """Return the name or address in a Host header, without its port."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        address, _, rest = text[1:].partition("]")
        return address if rest[:1] in {"", ":"} else text
    return text.partition(":")[0].rstrip(".")


@lru_cache(maxsize=1024)
def _is_unambiguous(name: str) -> bool:
    """Return whether no DNS server can make this name stand for another address."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


PROVEN_S = 60.0
"""How long a router's answer about a key is good for."""
REFUSED_S = 5.0
"""How long it is known that the fleet serves nobody without a credential."""
MAX_KEYS = 4096


class Keys:
    """Asks the fleets about the keys of HTTP callers, and remembers the answers for a while."""

    def __init__(self, fleets: Fleets) -> None:
        self._fleets = fleets
        self._proven: OrderedDict[str, float] = OrderedDict()
        """Until when a key is taken as proven, by its caller's name."""
        self._refused: tuple[float, NotAllowed] | None = None

    @property
    def are_needed(self) -> bool:
        """Return whether a fleet may ask for a key at all."""
        return self._fleets.sends_keys

    def is_proven(self, key: str) -> bool:
        return self._proven.get(caller_of(key), 0.0) > asyncio.get_running_loop().time()

    async def prove(self, key: str) -> None:
        """Return if a fleet accepts this caller key, which may be empty. Raises `BatonError`.

        The caller's key has to be in `caller_key`.
        """
        now = asyncio.get_running_loop().time
        if self.is_proven(key):
            return
        if not key and self._refused is not None and self._refused[0] > now():
            raise self._refused[1]
        try:
            await self._fleets.tenant()
        except NotAllowed as error:
            if not key:
                self._refused = (now() + REFUSED_S, error)
            raise
        self._proven[caller_of(key)] = now() + PROVEN_S
        self._proven.move_to_end(caller_of(key))
        if len(self._proven) > MAX_KEYS:
            self._proven.popitem(last=False)


def caller_of(key: str) -> str:
    """Return a name for the caller with this key, which does not contain the key."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


_CREDENTIALS = (b"authorization", b"x-api-key")
_ONCE = frozenset({*_CREDENTIALS, b"host", b"origin"})
_READ = _ONCE | {b"sec-fetch-site", b"content-type", b"content-length", b"transfer-encoding"}


@dataclass(frozen=True, slots=True, eq=False)
class Door:
    """Serves `app` behind these checks. `respond` makes the response to an error."""

    app: ASGIApp
    rules: Rules
    keys: Keys
    bodies: Shares
    max_body_bytes: int
    respond: Callable[[str, ApiError | BatonError], Response]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        room: Room | None = None
        try:
            headers = _read(scope)
            credentials = [headers.get(name, b"").decode("latin-1") for name in _CREDENTIALS]
            key = key_of(*credentials) if any(credentials) else ""
            caller_key.set(key)
            check_caller(self.rules, scope["method"], scope["path"], headers)
            declared, is_chunked = int(headers.get(b"content-length", 0)), b"transfer-encoding" in headers
            if declared or is_chunked:
                room = await self._room(scope, key, declared, is_chunked=is_chunked)
        except (ApiError, BatonError) as error:
            await self.respond(scope["path"], error)(scope, receive, send)
            return
        if room is None:
            await self.app(scope, receive, send)
            return
        known = record.get()
        if known is not None:
            known.on_start = room.give_back
        try:
            await self.app(scope, _counting(receive, room) if is_chunked else receive, send)
        finally:
            room.give_back()

    async def _room(self, scope: Scope, key: str, declared: int, *, is_chunked: bool) -> Room:
        """Return the room for a body. Raises `ApiError`, or `BatonError` for a key that is not accepted."""
        # A body that is too large is refused unread, and a file has room of its own.
        size = 0 if scope["path"] == UPLOAD or declared > self.max_body_bytes else declared
        client = scope["client"]
        room = Room(self.bodies, client[0] if client else "")
        if self.keys.are_needed:
            is_small = declared <= LARGE_BYTES and not is_chunked
            if key and is_small and not self.keys.is_proven(key):
                unproven = Room(self.bodies, "", UNPROVEN)
                if unproven.has_grown(size):
                    return unproven
            await self.keys.prove(key)
            if key:
                room = Room(self.bodies, caller_of(key))
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


def key_of(authorization: str, x_api_key: str) -> str:
    """Return the API key or JWT in a request's headers; empty if there is none. Raises `ApiError` for two."""
    scheme, _, rest = authorization.partition(" ")
    bearer, key = rest.strip() if scheme.lower() == "bearer" else "", x_api_key.strip()
    if bearer and key and bearer != key:
        raise invalid("x-api-key", "authorization and x-api-key have different keys; accepted: one key")
    text = bearer or key
    # gRPC metadata takes no other characters, and no key has them.
    return text if text.isascii() and text.isprintable() and " " not in text else ""
