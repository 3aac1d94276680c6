"""The settings that routers and workers have in common: flags, checked once, frozen."""

from __future__ import annotations

import argparse
import secrets
import socket
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from runtime.hub.names import HubModel, model_path
from runtime.process.metric_names import METRIC_NAMES
from runtime.security.settings import Security, add_security_flags, security_of
from runtime.tracing.settings import TracingSettings, add_tracing_flags, tracing_of

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("json", "console")
MAX_PORT = 65_535
NUMBERS = 10**9


def draw_number() -> int:
    """Draw a number that tells this process from others on a host of the same name.

    Process ids do not: in containers, most are 1.
    """
    return secrets.randbelow(NUMBERS)


def own_name(kind: str, number: int) -> str:
    """Return a process's name in the fleet, for one that was given none."""
    return f"{kind}-{socket.gethostname()}-{number}"


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """Where a service listens and logs, and what it serves.

    Raises `ValueError` naming the flag, its value and what it accepts.
    """

    listen: str
    advertise: str
    redis: str
    model: Path
    """The folder of the checkpoint, once it is found (`runtime.checkpoints`); before, what the flag says."""
    metrics_port: int
    metric_names: str
    """One of `METRIC_NAMES`: whose names metrics have besides our own."""
    drain_s: float
    log_level: str
    log_format: str
    security: Security
    hub: HubModel | None = None
    """The model of the hub that the folder is a snapshot of; None for a folder of another kind."""
    tracing: TracingSettings = field(default_factory=TracingSettings)

    def __post_init__(self) -> None:
        check_address("--listen", self.listen)
        if self.advertise:
            check_address("--advertise", self.advertise)
        check_port("--metrics-port", self.metrics_port)
        check_least(self, 0, "drain_s")
        self.security.check_listen(self.listen)
        self.security.check_redis(self.redis)
        check_redis_url(self.redis)

    @property
    def host(self) -> str:
        """The address that the service listens on, without the port."""
        return self.listen.rpartition(":")[0]

    @property
    def model_name(self) -> str:
        """The name by which callers know the model: that on the hub, or that of its folder or GGUF file."""
        return self.model.resolve().name if self.hub is None else self.hub.served_name

    @property
    def model_commit(self) -> str:
        """The commit of a model of the hub, which all processes of a fleet have in common; else empty."""
        return "" if self.hub is None else self.hub.revision

    def address(self, port: int) -> str:
        """Return the address for others of a service that is bound to `port`."""
        return self.advertise or f"{self.host}:{port}"


def check_address(flag: str, address: str) -> None:
    """Raise `ValueError`, which names the flag, unless this is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit() and int(port) <= MAX_PORT):
        raise ValueError(f"{flag} is {address!r}; accepted: HOST:PORT with a port of 0 to {MAX_PORT}")


def check_port(flag: str, port: int) -> None:
    """Raise `ValueError`, which names the flag, unless this is a port, or 0 for any that is free."""
    if not 0 <= port <= MAX_PORT:
        raise ValueError(f"{flag} is {port}; accepted: 0 to {MAX_PORT}")


def check_redis_url(url: str) -> None:
    """Raise `ValueError` unless this is a URL of Redis."""
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError(f"--redis is {url!r}; accepted: a URL such as redis://127.0.0.1:6379/0")


def check_least(settings: object, least: int, *names: str) -> None:
    """Raise `ValueError`, which names the flag, for the first of these fields that is set and less."""
    for name in names:
        number = getattr(settings, name)
        if number is not None and number < least:
            raise ValueError(f"--{name.replace('_', '-')} is {number}; accepted: {least} or more")


def add_service_flags(parser: argparse.ArgumentParser, listen: str, listens: str, drains: str) -> None:
    """Add the flags that `settings_of` reads. `listens` and `drains` explain --listen and --drain-s."""
    add = parser.add_argument
    add("--listen", default=listen, metavar="HOST:PORT", help=listens)
    add("--advertise", default="", metavar="HOST:PORT", help="the address given to others (the bound one)")
    add(
        "--redis",
        default="redis://127.0.0.1:6379/0",
        metavar="URL",
        help="the fleet's Redis, by redis://, rediss:// or unix://",
    )
    add(
        "--model",
        required=True,
        type=model_path,
        metavar="MODEL",
        help="the folder of the checkpoint, a GGUF file, or a model of the hub: ORG/NAME or "
        "ORG/NAME@REVISION, and :FILE.gguf after it for one of its GGUF files",
    )
    add(
        "--metrics-port", default=0, type=int, metavar="N", help="Prometheus metrics; 0 takes a free port (0)"
    )
    add(
        "--metric-names",
        default=METRIC_NAMES[0],
        choices=METRIC_NAMES,
        help="vllm: serve what vLLM's metrics measure under its names as well, for tools that look for them "
        f"({METRIC_NAMES[0]})",
    )
    add("--drain-s", default=20.0, type=float, metavar="S", help=drains)
    add_log_flags(parser)
    add_tracing_flags(parser)
    add_security_flags(parser)


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what is logged, and how."""
    add = parser.add_argument
    add("--log-level", default="info", choices=LOG_LEVELS, help="the least severe lines to log (info)")
    add(
        "--log-format",
        default=LOG_FORMATS[sys.stderr.isatty()],
        choices=LOG_FORMATS,
        help="how lines are logged (console on a terminal, else json)",
    )


def settings_of(values: dict[str, Any]) -> ServiceSettings:
    """Take these settings out of `given`, the parsed flags; raises `ValueError`."""
    security, tracing = security_of(values), tracing_of(values)
    own = {each.name: values.pop(each.name) for each in fields(ServiceSettings) if each.name in values}
    return ServiceSettings(**own, security=security, tracing=tracing)
