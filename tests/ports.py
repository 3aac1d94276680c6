"""Where a test may listen."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One of the loopback address that nobody listens on, until somebody does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
