"""Check and find ports on this machine."""

from __future__ import annotations

import os
import socket

from baton.fleet.errors import PortUnusable


def check_free(host: str, port: int) -> None:
    """Raise `PortUnusable` unless a service could bind the port. The service would report it late."""
    with socket.socket() as probe:
        # The services set this too; without it, a port that was just released would seem to be in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortUnusable(f"{host}:{port}", os.strerror(error.errno or 0)) from error


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
