"""The flags of traces, and the variables of OpenTelemetry's exporters that say more of their collector."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_VARIABLE = "OTEL_EXPORTER_OTLP_"
_PACKAGE = "opentelemetry.proto"
_METADATA_KEY = re.compile(r"[0-9a-z_.-]+")
_METADATA_VALUE = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Raises `ValueError` naming the flag or variable, its value and what it accepts."""

    endpoint: str = ""
    """The collector, as a URL; empty: nothing is traced."""
    ratio: float = 1.0
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Metadata of each call to the collector, such as a key."""
    certificate: str = ""
    """The file of the CA that vouches for the collector; empty: those that gRPC knows."""
    resource: Mapping[str, str] = field(default_factory=dict)
    """Attributes of this process, for all of its spans."""

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise ValueError(f"--trace-ratio is {self.ratio}; accepted: 0 to 1")
        if not self.endpoint:
            return
        named = f"--otlp-endpoint, or {_VARIABLE}ENDPOINT, is {self.endpoint!r}"
        if not _is_url(self.endpoint):
            raise ValueError(f"{named}; accepted: a URL such as http://127.0.0.1:4317")
        if not _is_installed():
            lacking = "the package opentelemetry-proto, which is not installed: pip install 'baton[tracing]'"
            raise ValueError(f"{named}; accepted: with {lacking}; without it, --otlp-endpoint ''")
        if self.certificate and not Path(self.certificate).is_file():
            raise ValueError(f"{_VARIABLE}CERTIFICATE is {self.certificate!r}; accepted: a file with a CA")
        for key, value in self.headers.items():
            if not _METADATA_KEY.fullmatch(key) or not _METADATA_VALUE.fullmatch(value):
                raise ValueError(
                    f"{_VARIABLE}HEADERS sets {key!r}; accepted: names and values of gRPC metadata"
                )


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:
        return False


def add_tracing_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `tracing_of` reads."""
    add = parser.add_argument
    add(
        "--otlp-endpoint",
        metavar="URL",
        help="the collector that traces are sent to, by OTLP over gRPC, such as http://127.0.0.1:4317; empty "
        f"for none ({_VARIABLE}ENDPOINT of the environment, else none)",
    )
    add(
        "--trace-ratio",
        default=1.0,
        type=float,
        metavar="R",
        help="the share of requests that are traced, of those whose caller has not decided that (1)",
    )


def tracing_of(values: dict[str, Any]) -> TracingSettings:
    """Take these settings out of `values`, the parsed flags; raises `ValueError`."""
    endpoint, ratio = values.pop("otlp_endpoint"), values.pop("trace_ratio")
    if endpoint is None:
        endpoint = _variable("ENDPOINT")
    if not endpoint:
        return TracingSettings(ratio=ratio)
    headers = _pairs(f"{_VARIABLE}HEADERS", _variable("HEADERS"))
    return TracingSettings(
        endpoint,
        ratio,
        headers={key.lower(): value for key, value in headers.items()},
        certificate=_variable("CERTIFICATE"),
        resource=_pairs("OTEL_RESOURCE_ATTRIBUTES", os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    )


def _variable(name: str) -> str:
    """Return a variable of OpenTelemetry's exporters: that of traces, else that of everything; or nothing."""
    return os.environ.get(f"{_VARIABLE}TRACES_{name}") or os.environ.get(f"{_VARIABLE}{name}") or ""


def _pairs(variable: str, text: str) -> dict[str, str]:
    """Return the pairs of a variable's text, such as `key=value,other=a%20value`."""
    pairs = {}
    for part in filter(str.strip, text.split(",")):
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:  # the text itself may hold a key
            raise ValueError(f"{variable} has a part that is no pair; accepted: key=value,other=a%20value")
        pairs[unquote(key.strip())] = unquote(value.strip())
    return pairs
