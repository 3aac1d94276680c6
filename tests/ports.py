"""Where a test may listen."""

from __future__ import annotations

import contextlib
import socket


def free_port() -> int:
    """One of the loopback address that nobody listens on, by TCP or UDP, until somebody does."""
    while True:
        with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            with contextlib.suppress(OSError):
                datagrams.bind(("127.0.0.1", port))
                return port
