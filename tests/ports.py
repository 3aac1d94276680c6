"""Ports for tests to listen on."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_FIRST = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on, by TCP or UDP.

    The kernel gives it to nobody who asks for any port, as each connection and each listener on port 0 does:
    such a one may otherwise take it before the test does.
    """
    end = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    while True:
        port = random.SystemRandom().randrange(_FIRST, end) if end > 2 * _FIRST else 0
        probe, datagrams = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        with contextlib.suppress(OSError), probe, datagrams:
            probe.bind(("127.0.0.1", port))
            port = probe.getsockname()[1]
            datagrams.bind(("127.0.0.1", port))
            return port
