"""The picker's settings: read from flags, checked once, frozen."""

from __future__ import annotations

import argparse
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.config import DEFAULT_MAX_BODY_BYTES, add_common_flags, check_listening, fleets_of
from gateway.picker.pool import Target
from gateway.serving.fleet import CallerCredentials
from runtime.settings import check_address, check_least, check_port

_HTTPS, _HTTP = "https://", "http://"


@dataclass(frozen=True, slots=True)
class PickerConfig:
    """Validated settings; raises `ValueError` naming the flag, its value and what it accepts."""

    listen: str
    gateways: tuple[Target, ...]
    gateway_ca: Path | None
    fleets: tuple[tuple[str, ...], ...]
    """The routers of each fleet that the gateways serve."""
    credentials: CallerCredentials
    tls_cert: Path | None
    tls_key: Path | None
    insecure_listen: bool
    max_body_bytes: int
    metrics_port: int
    drain_s: float
    log_level: str
    log_format: str

    def __post_init__(self) -> None:
        check_listening(self.listen, "tls", self.tls_cert, self.tls_key, insecure=self.insecure_listen)
        check_port("--metrics-port", self.metrics_port)
        check_least(self, 1, "max_body_bytes")
        check_least(self, 0, "drain_s")
        for gateway in self.gateways:
            check_address("--gateway", gateway.address)

    @property
    def host(self) -> str:
        """The address that the picker listens on, without the port."""
        return self.listen.rpartition(":")[0]

    def gateway_context(self) -> ssl.SSLContext:
        """Return what gateways with HTTPS are known by; without a CA, what this machine trusts."""
        return ssl.create_default_context(cafile=self.gateway_ca or self.credentials.ca)


def parse_config(argv: Sequence[str]) -> PickerConfig:
    """Return the settings that flags give; raise `ValueError`, or exit with code 2 on unknown flags."""
    given = vars(flags().parse_args(argv))
    return PickerConfig(
        gateways=tuple(map(_target, given.pop("gateway") or ("127.0.0.1:8000",))),
        fleets=fleets_of(given.pop("router"), given.pop("fleet")),
        credentials=CallerCredentials(*map(given.pop, ("ca", "cert", "key"))),
        **given,
    )


def _target(text: str) -> Target:
    return Target(text.removeprefix(_HTTPS).removeprefix(_HTTP), is_https=text.startswith(_HTTPS))


def flags() -> argparse.ArgumentParser:
    """Return the parser of a picker's command line."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.picker",
        description="The endpoint picker: the fleet's gateways behind an inference gateway.",
    )
    add_common_flags(parser, "127.0.0.1:9002", "the proxy connects", "clear text")
    add = parser.add_argument
    add(
        "--gateway",
        action="append",
        metavar="[https://]HOST:PORT",
        help="gateways of the fleet; a name may stand for many; may be repeated (127.0.0.1:8000)",
    )
    add("--gateway-ca", type=Path, metavar="FILE", help="the CA of gateways with HTTPS (--ca)")
    add("--tls-cert", type=Path, metavar="FILE", help="the certificate that the proxy sees; turns on TLS")
    add("--tls-key", type=Path, metavar="FILE", help="the key of that certificate")
    add(
        "--max-body-bytes",
        default=DEFAULT_MAX_BODY_BYTES,
        type=int,
        metavar="N",
        help=f"a larger body is not quoted; the gateways' limit ({DEFAULT_MAX_BODY_BYTES})",
    )
    return parser
