"""Limits on what one caller may send and hold. What exceeds them is refused before it costs anything."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from runtime.settings import check_least

MAX_WAITING_BYTES = 64 << 20
MAX_UNTAKEN_CALLS = 10_240
"""Calls that have arrived and that the event loop has not taken yet: at most 64 KiB of a request each."""
MAX_UNTAKEN_S = 600
"""How long they may wait for it. After that, by default 30 s, gRPC cancels them without a reason."""
MIN_PING_INTERVAL_MS = 5_000
"""A connection ends after three pings at shorter intervals."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits, one flag each. Raises `ValueError` naming the flag."""

    max_message_bytes: int = 4 << 20
    max_metadata_bytes: int = 16 << 10
    max_streams: int = 1024
    """Concurrent calls on one connection; further calls wait at the caller."""
    max_connections: int = 4096
    max_prompt_bytes: int = 2 << 20
    max_prompt_tokens: int = 0
    """0: as many as the model's context holds."""
    max_waiting_prompt_bytes: int = MAX_WAITING_BYTES
    """All texts and chats together that wait for tokenisation."""
    handshake_s: int = 10
    """The time for the handshake of a new connection."""

    def __post_init__(self) -> None:
        check_least(self, 0, "max_prompt_tokens")
        check_least(self, 1, *(name for name in _MEANINGS if name != "max_prompt_tokens"))

    def server_options(self, *, shares_port: bool = False) -> tuple[tuple[str, int], ...]:
        """Return the options by which the gRPC server itself enforces limits.

        `shares_port` is for the processes of one router. If two routers shared a port by mistake, each would
        get only some of its calls.
        """
        return (
            ("grpc.max_receive_message_length", self.max_message_bytes),
            # gRPC refuses some metadata above the first limit, and all metadata above the second.
            ("grpc.max_metadata_size", self.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", self.max_metadata_bytes),
            ("grpc.max_concurrent_streams", self.max_streams),
            # Beyond these gRPC cancels new calls without a reason. Its own numbers are 1000, from where on it
            # does so at random, and 3000: a burst exceeds them while the event loop takes call by call.
            ("grpc.server.max_pending_requests", MAX_UNTAKEN_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", MAX_UNTAKEN_CALLS),
            ("grpc.server_max_unrequested_time_in_server", MAX_UNTAKEN_S),
            # This counts ended calls that are not yet freed, too, so it refuses calls of a client that keeps
            # to `max_streams`. What can wait is bounded above.
            ("grpc.http.overload_protection", 0),
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.server_handshake_timeout_ms", self.handshake_s * 1000),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
            # Else a ping of a connection without calls counts as too early for two hours.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.so_reuseport", int(shares_port)),
        )


_MEANINGS = {
    "max_message_bytes": "bytes of a message",
    "max_metadata_bytes": "bytes of the metadata of a call",
    "max_streams": "calls at once on one connection; more wait at the caller",
    "max_connections": "connections at once; more are closed",
    "max_prompt_bytes": "bytes of a prompt's text or chat",
    "max_prompt_tokens": "tokens of a prompt; 0: what the model's context holds",
    "max_waiting_prompt_bytes": "bytes of all prompts that wait to be tokenised",
    "handshake_s": "seconds in which a new connection must complete its handshake",
}


def add_limit_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each limit."""
    group = parser.add_argument_group("limits")
    for name, meaning in _MEANINGS.items():
        default = Limits.__dataclass_fields__[name].default
        flag = f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=int, default=default, metavar="N", help=f"{meaning} ({default})")


def limits_of(given: dict[str, Any]) -> Limits:
    """Take the limits out of `given`, the parsed flags; raises `ValueError`."""
    return Limits(**{name: given.pop(name) for name in _MEANINGS})
