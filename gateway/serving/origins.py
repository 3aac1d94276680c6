"""Requests that a web page makes a browser send: told from those of programs by their heads.

A page of any site can make its visitor's browser send requests to this gateway. The browser names the page's
origin, and by DNS rebinding the page can give the gateway's address a name of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from baton.wire.shown import shown
from gateway.errors import ApiError, Problem, invalid

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
