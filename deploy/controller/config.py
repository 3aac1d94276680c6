"""The controller's settings: read from flags, checked once, frozen."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from baton.security.credentials import Credentials
from runtime.settings import add_log_flags, check_address


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Validated settings; raises `ValueError` naming the flag, its value and what it accepts."""

    namespace: str
    routers: tuple[str, ...]
    credentials: Credentials
    log_level: str
    log_format: str

    def __post_init__(self) -> None:
        if not self.namespace:
            raise ValueError("--namespace is empty; accepted: the namespace of the worker pools")
        for router in self.routers:
            check_address("--router", router)


def parse_config(argv: Sequence[str]) -> ControllerConfig:
    """Return the settings that flags give; raise `ValueError`, or exit with code 2 on unknown flags."""
    values = vars(flags().parse_args(argv))
    credentials = Credentials(*(values.pop(name) for name in ("ca", "cert", "key", "api_key_file")))
    return ControllerConfig(routers=tuple(values.pop("router")), credentials=credentials, **values)


def flags() -> argparse.ArgumentParser:
    """Return the parser of the controller's command line."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.controller",
        description="Advances rollouts and scale-downs of worker pools on Kubernetes as routers allow.",
    )
    add = parser.add_argument
    add("--namespace", required=True, metavar="NAME", help="the namespace of the worker pools")
    add(
        "--router",
        action="append",
        required=True,
        metavar="HOST:PORT",
        help="routers; the name of a headless Service stands for all of its pods; may be repeated",
    )
    add("--ca", type=Path, metavar="FILE", help="the fleet's CA; turns on TLS to the routers")
    add("--cert", type=Path, metavar="FILE", help="a client's certificate, for routers that require one")
    add("--key", type=Path, metavar="FILE", help="the key of that certificate")
    add("--api-key-file", type=Path, metavar="FILE", help="an operator's API key, or a JWT")
    add_log_flags(parser)
    return parser
