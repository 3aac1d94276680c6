"""The gateway's settings: read from flags, checked once, frozen."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path

from baton.security.credentials import Credentials
from gateway.batches.files import FORM_BYTES, StoreLimits
from gateway.responses.store import ResponseLimits
from gateway.serving.door import ANY, Rules
from gateway.serving.fleet import CallerCredentials
from runtime.security.settings import Security, is_loopback
from runtime.security.tls import TlsFiles
from runtime.settings import add_log_flags, check_address, check_least, check_port, check_redis_url
from runtime.state.access import RedisAccess
from runtime.tracing.settings import TracingSettings, add_tracing_flags, tracing_of

DEFAULT_MAX_BODY_BYTES = 4 << 20
"""The limit of a router's message too."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Validated settings; raises `ValueError` naming the flag, its value and what it accepts."""

    listen: str
    fleets: tuple[tuple[str, ...], ...]
    """The routers of each fleet."""
    credentials: CallerCredentials
    https_cert: Path | None
    https_key: Path | None
    insecure_listen: bool
    page: bool
    """Serve the page for people beyond loopback, too."""
    redis: str | None
    """If None, calls that keep state after a request are not served."""
    redis_ca: Path | None
    redis_password_file: Path | None
    metrics_port: int
    allowed_hosts: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    max_connections: int
    max_idle_connections: int
    keep_alive_s: float
    max_body_bytes: int
    max_bodies_bytes: int
    strict_fields: bool
    file_limits: StoreLimits
    batch_lines: int
    response_limits: ResponseLimits
    connect_s: float
    drain_s: float
    log_level: str
    log_format: str
    tracing: TracingSettings

    def __post_init__(self) -> None:
        cert, key = self.https_cert, self.https_key
        check_listening(self.listen, "https", cert, key, insecure=self.insecure_listen)
        check_port("--metrics-port", self.metrics_port)
        check_least(self, 1, "max_body_bytes", "batch_lines", "max_idle_connections")
        check_least(self, 2, "max_connections")
        check_least(self, 0, "keep_alive_s", "connect_s", "drain_s")
        self._check_browsers()
        self._check_room("max_bodies_bytes", self.max_bodies_bytes, "max_body_bytes", self.max_body_bytes)
        files = self.file_limits
        self._check_room("max_spooled_bytes", files.max_spooled_bytes, "max_file_bytes", files.max_file_bytes)
        check_least(files, 1, *(field.name for field in fields(StoreLimits)))
        Credentials.metadata(self.credentials)  # reads the key, which must be one
        if self.redis is not None:
            ca = self.redis_access.ca
            Security(redis_ca=ca, insecure_listen=self.insecure_listen).check_redis(self.redis)
            check_redis_url(self.redis)

    def _check_browsers(self) -> None:
        for origin in self.allowed_origins:
            if origin != ANY and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin):
                accepted = f"an origin such as https://chat.example, in lower case, or {ANY!r}"
                raise ValueError(f"--allow-origin is {origin!r}; accepted: {accepted}")
        for host in self.allowed_hosts:
            if not re.fullmatch(r"[a-z0-9._-]+", host):
                accepted = "a name such as gpu-1.example, in lower case, without a port"
                raise ValueError(f"--allow-host is {host!r}; accepted: {accepted}")

    def _check_room(self, name: str, total: int, one_name: str, one: int) -> None:
        """Raise `ValueError` unless one caller's half has room for what it may send at once."""
        if total < 2 * (one + FORM_BYTES):
            flag, one_flag = (f"--{each.replace('_', '-')}" for each in (name, one_name))
            accepted = f"{2 * (one + FORM_BYTES)} or more, since one caller has half, and {one_flag} is {one}"
            raise ValueError(f"{flag} is {total}; accepted: {accepted}")

    @property
    def rules(self) -> Rules:
        """The rules by which browsers may use the gateway.

        A name that others may give it by DNS is refused in the clear on loopback, where nobody else protects
        the gateway, and wherever names are stated.
        """
        is_https = self.https_cert is not None
        own = frozenset({self.host, *self.allowed_hosts})
        checks = bool(self.allowed_hosts) or (not is_https and is_loopback(self.listen))
        return Rules(own, frozenset(self.allowed_origins), checks, is_https)

    @property
    def has_page(self) -> bool:
        return self.page or is_loopback(self.listen)

    @property
    def security(self) -> Security:
        """The TLS of the metrics: any certificate of the fleet's CA may read them."""
        ca, cert, key = self.credentials.ca, self.https_cert, self.https_key
        if ca is None or cert is None or key is None:
            return Security(insecure_listen=self.insecure_listen)
        return Security(TlsFiles(ca, cert, key))

    @property
    def redis_access(self) -> RedisAccess:
        """The files for Redis: the gateway shows it the certificate that it shows to routers."""
        own = self.credentials
        return RedisAccess(self.redis_ca or own.ca, own.cert, own.key, self.redis_password_file)

    @property
    def host(self) -> str:
        """The address that the gateway listens on, without the port and without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")


def parse_config(argv: Sequence[str]) -> GatewayConfig:
    """Return the settings that flags give; raise `ValueError`, or exit with code 2 on unknown flags."""
    given = vars(flags().parse_args(argv))
    hosts, origins = (tuple(given.pop(name) or ()) for name in ("allow_host", "allow_origin"))
    return GatewayConfig(
        credentials=CallerCredentials(*map(given.pop, ("ca", "cert", "key", "api_key_file"))),
        fleets=fleets_of(given.pop("router"), given.pop("fleet")),
        allowed_hosts=hosts,
        allowed_origins=origins,
        tracing=tracing_of(given),
        file_limits=StoreLimits(**{field.name: given.pop(field.name) for field in fields(StoreLimits)}),
        response_limits=ResponseLimits(
            **{field.name: given.pop(field.name) for field in fields(ResponseLimits)}
        ),
        **given,
    )


def fleets_of(routers: Sequence[str], further: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the routers of each fleet that flags name. Raises `ValueError` for what is no address."""
    own = routers if routers or further else ("127.0.0.1:50051",)
    fleets = tuple(tuple(each) for each in (own, *(text.split(",") for text in further)) if each)
    for router in chain.from_iterable(fleets):
        check_address("--router" if router in routers else "--fleet", router)
    return fleets


def check_listening(listen: str, tls: str, cert: Path | None, key: Path | None, *, insecure: bool) -> None:
    """Raise `ValueError` for an address that others can reach in the clear, unless a flag allows it.

    Callers see the certificate, whose flags begin with `tls`.
    """
    check_address("--listen", listen)
    if (cert is None) != (key is None):
        raise ValueError(f"one of --{tls}-cert and --{tls}-key is missing; accepted: both or neither")
    if cert is None and not insecure and not is_loopback(listen):
        raise ValueError(
            f"--listen is {listen!r}, which others can reach, without TLS; accepted: a loopback "
            f"address, --{tls}-cert and --{tls}-key, or --insecure-listen on a trusted network"
        )


def add_common_flags(parser: argparse.ArgumentParser, listen: str, listens: str, insecure: str) -> None:
    """Add the flags that gateways and pickers share; `listens` and `insecure` are for their help."""
    add = parser.add_argument
    add("--listen", default=listen, metavar="HOST:PORT", help=f"where {listens}; 0: any free")
    add(
        "--router",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="a router of the fleet; may be repeated (127.0.0.1:50051, without --fleet)",
    )
    add(
        "--fleet",
        action="append",
        default=[],
        metavar="HOST:PORT,...",
        help="the routers of a further fleet, which serves another model; may be repeated (none)",
    )
    add("--ca", type=Path, metavar="FILE", help="the fleet's CA; turns on TLS to the routers")
    add("--cert", type=Path, metavar="FILE", help="a gateway's certificate, for routers that require one")
    add("--key", type=Path, metavar="FILE", help="the key of that certificate")
    allows = f"allow {insecure} beyond loopback, on a trusted network"
    add("--insecure-listen", action="store_true", help=allows)
    add(
        "--metrics-port", default=0, type=int, metavar="N", help="Prometheus metrics; 0 takes a free port (0)"
    )
    add("--drain-s", default=20.0, type=float, metavar="S", help="time to end open work after SIGTERM (20)")
    add_log_flags(parser)


_FILES = (
    ("--api-key-file", "the gateway's own key, by which it runs batches for their tenants; a delegate's"),
    ("--https-cert", "the certificate that HTTP clients see; turns on HTTPS"),
    ("--https-key", "the key of that certificate"),
    ("--redis-ca", "the CA of rediss:// (--ca)"),
    ("--redis-password-file", "the password of the user in --redis"),
)
_NUMBERS: tuple[tuple[str, float, str], ...] = (
    ("--connect-s", 10.0, "how long routers may be unreachable (10)"),
    ("--keep-alive-s", 620.0, "how long connections may be idle: longer than with clients and proxies (620)"),
    ("--max-connections", 4096, "connections at once, half of them from one address (4096)"),
    ("--max-idle-connections", 1024, "idle connections; the oldest is closed for the next one (1024)"),
    ("--max-body-bytes", DEFAULT_MAX_BODY_BYTES, f"the largest request ({DEFAULT_MAX_BODY_BYTES})"),
    ("--max-bodies-bytes", 128 << 20, "requests without a response, half of them one caller's (128 MiB)"),
    ("--max-spooled-bytes", 256 << 20, "files that arrive, half of them one tenant's (256 MiB)"),
    ("--max-file-bytes", 100 << 20, "the largest file for batches (100 MiB)"),
    ("--max-tenant-bytes", 256 << 20, "the most that files of one tenant take together (256 MiB)"),
    ("--max-stored-bytes", 512 << 20, "the most that all files take, before compression (512 MiB)"),
    ("--file-ttl-s", 30 * 86400, "how long files are kept (30 days)"),
    ("--batch-lines", 64, "the most lines of batches that this gateway runs at once (64)"),
    ("--response-ttl-s", 86_400.0, "how long a response of /v1/responses is kept (86400)"),
    (
        "--response-max-bytes",
        1 << 20,
        f"the largest response kept, compressed with its conversation, and 8 times that before ({1 << 20})",
    ),
    (
        "--responses-max-bytes",
        64 << 20,
        f"all that are kept; over it, the tenant that holds most loses its oldest ({64 << 20})",
    ),
)
"""Numbers are whole or not as their default is."""


def flags() -> argparse.ArgumentParser:
    """Return the parser of a gateway's command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway", description="The fleet's HTTP APIs, a client of its routers."
    )
    add_common_flags(parser, "127.0.0.1:8000", "HTTP clients connect", "plain HTTP")
    add_tracing_flags(parser)
    add = parser.add_argument
    add(
        "--page",
        action="store_true",
        help="serve people a page at / to try the fleet and to look at it, as on loopback",
    )
    add(
        "--redis",
        metavar="URL",
        help="where files, batches and responses are kept, by redis://, rediss:// or unix://; without it "
        "files and batches are not served, and responses are not stored",
    )
    for flag, what in _FILES:
        add(flag, type=Path, metavar="FILE", help=what)
    add(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="a name under which callers reach the gateway, beside localhost and IP addresses; may be "
        "repeated. Others are refused in the clear on loopback, and elsewhere if one is given (none)",
    )
    add(
        "--allow-origin",
        action="append",
        metavar="ORIGIN",
        help="an origin, such as https://chat.example, whose pages may call the gateway (CORS); may be "
        "repeated; * for any (none)",
    )
    add(
        "--strict-fields",
        action="store_true",
        help="refuse fields, tools and items that are not served, which are otherwise left out and named in "
        "the header x-baton-ignored",
    )
    for flag, default, what in _NUMBERS:
        kind, unit = (int, "N") if isinstance(default, int) else (float, "S")
        add(flag, default=default, type=kind, metavar=unit, help=what)
    return parser
