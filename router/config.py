"""The router's settings: read from flags, checked once, frozen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from router.auth.limits import Limits, add_limit_flags, limits_of
from scheduling import policies
from scheduling.admission.shares import TenantWeights
from scheduling.cost.profiles import Profile
from scheduling.placement import Placement
from scheduling.policies.policy import Policy
from services.profiles import load_timed, names
from services.security.settings import Security, add_security_flags, security_of

WITHOUT_REDIS = ("refuse", "local")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("json", "console")


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Validated settings; raises `ValueError` naming the flag and what it accepts."""

    listen: str
    advertise: str
    redis: str
    model: Path
    router_id: str
    policy: Policy
    placement: Placement
    timed: Profile | None
    """The workers' profile, whose context is longer than the model's own."""
    weights: TenantWeights
    without_redis: str
    queue_capacity: int
    tokenizer_processes: int
    metrics_port: int
    drain_s: float
    record: Path | None
    log_level: str
    log_format: str
    security: Security
    limits: Limits
    door: Path | None
    """The file with keys, token issuers and budgets; None: everyone who reaches the router may call."""
    client_ca: Path | None
    """Callers must present a certificate signed by this CA."""

    def __post_init__(self) -> None:
        for name, value in (("--listen", self.listen), ("--advertise", self.advertise)):
            host, _, port = value.rpartition(":")
            if value and not (host and port.isdigit() and int(port) <= 65535):
                raise ValueError(f"{name} is {value!r}; accepted: HOST:PORT with a port of 0 to 65535")
        for flag, number, low in (
            ("--queue-capacity", self.queue_capacity, 1),
            ("--tokenizer-processes", self.tokenizer_processes, 1),
            ("--drain-s", self.drain_s, 0),
        ):
            if number < low:
                raise ValueError(f"{flag} is {number}; accepted: {low} or more")
        if not 0 <= self.metrics_port <= 65535:
            raise ValueError(f"--metrics-port is {self.metrics_port}; accepted: 0 to 65535")
        if self.record is not None and not self.record.parent.is_dir():
            raise ValueError(f"--record is {str(self.record)!r}; accepted: a file in a directory that exists")
        self.security.check_listen(self.listen)
        self.security.check_redis(self.redis)
        if self.client_ca is not None and self.security.tls is None:
            raise ValueError("--client-ca is set; accepted: with --tls-ca, --tls-cert and --tls-key")
        if "://" not in self.redis:
            raise ValueError(f"--redis is {self.redis!r}; accepted: a URL such as redis://127.0.0.1:6379/0")

    @property
    def host(self) -> str:
        """The address that the router listens on, without the port."""
        return self.listen.rpartition(":")[0]


def parse_config(argv: Sequence[str], process_id: int) -> RouterConfig:
    """Return the settings that flags give; raise `ValueError`, or exit with code 2 on unknown flags."""
    given = vars(flags(process_id).parse_args(argv))
    policy = policies.by_name(given["policy"])
    named = {
        "security": security_of(given),
        "limits": limits_of(given),
        "policy": policy,
        "placement": Placement(given["placement"] or policy.placement),
        "timed": None if given["timed"] is None else load_timed(given["timed"]),
        "weights": parse_weights(given.pop("tenant_weights")),
    }
    return RouterConfig(**(given | named))


def flags(process_id: int) -> argparse.ArgumentParser:
    """Return the parser of a router's command line."""
    parser = argparse.ArgumentParser(prog="python -m router", description="A router: the fleet's public API.")
    add = parser.add_argument
    add("--listen", default="127.0.0.1:50051", metavar="HOST:PORT", help="where clients connect; 0: any free")
    add("--advertise", default="", metavar="HOST:PORT", help="the address given to others (the bound one)")
    add(
        "--redis",
        default="redis://127.0.0.1:6379/0",
        metavar="URL",
        help="the fleet's Redis, by redis://, rediss:// or unix://",
    )
    add("--model", required=True, type=Path, metavar="PATH", help="the folder of the checkpoint")
    add(
        "--router-id",
        default=f"router-{process_id}",
        metavar="ID",
        help="this router's name in the fleet and in logs (router-<process id>)",
    )
    add(
        "--policy",
        default=policies.DEFAULT,
        choices=policies.NAMES,
        help=f"how the fleet serves; the same for all of its workers ({policies.DEFAULT})",
    )
    add(
        "--placement",
        default=None,
        choices=[placement.value for placement in Placement],
        help="where prompts are computed; without it, "
        + ", ".join(f"{name}: {policies.by_name(name).placement.value}" for name in policies.NAMES),
    )
    add("--timed", metavar="PROFILE", help=f"the workers' --timed profile: {', '.join(names())}, or a file")
    add("--tenant-weights", default="", metavar="NAME=W,...", help="weights of tenants' shares (1 for each)")
    add(
        "--without-redis",
        default=WITHOUT_REDIS[0],
        choices=WITHOUT_REDIS,
        help="while Redis is away, refuse new requests, or serve them from this router's own view",
    )
    add("--queue-capacity", default=1024, type=int, metavar="N", help="requests that may wait (1024)")
    add("--tokenizer-processes", default=1, type=int, metavar="N", help="processes that tokenise (1)")
    add(
        "--metrics-port", default=0, type=int, metavar="N", help="Prometheus metrics; 0 takes a free port (0)"
    )
    add("--drain-s", default=20.0, type=float, metavar="S", help="time to end streams after SIGTERM (20)")
    add("--record", default=None, type=Path, metavar="FILE", help="record every event, for replay")
    add("--log-level", default="info", choices=LOG_LEVELS, help="the least severe lines to log (info)")
    add(
        "--log-format",
        default=LOG_FORMATS[sys.stderr.isatty()],
        choices=LOG_FORMATS,
        help="how lines are logged (console on a terminal, else json)",
    )
    add_security_flags(parser)
    add_limit_flags(parser)
    add(
        "--door",
        type=Path,
        metavar="FILE",
        help="API keys, token issuers and budgets; without it everybody who reaches the router may call",
    )
    add("--client-ca", type=Path, metavar="FILE", help="require a client certificate signed by this CA")
    return parser


def parse_weights(text: str) -> TenantWeights:
    """Parse weights such as `a=2,b=0.5`; raises `ValueError` naming the flag."""
    weights: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, weight = part.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise ValueError(f"--tenant-weights has {part!r}; accepted: NAME=NUMBER,...") from None
    try:
        return TenantWeights(weights)
    except ValueError as error:
        raise ValueError(f"--tenant-weights: {error}") from error
