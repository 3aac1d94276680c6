"""The addresses behind a name, such as those of a headless service, whose pods come and go."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable


async def resolved(address: str) -> tuple[str, ...]:
    """Return the addresses of HOST:PORT as IP:PORT, sorted, of one family; itself if HOST is no name.

    Where a name has both families, the one with more addresses counts, and the one that the system prefers
    if they have as many. Raises `OSError` if the name cannot be resolved.
    """
    host, _, port = address.rpartition(":")
    if not is_name(address):
        return (address,)
    found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    return of_one_family((family, str(where[0]), int(port)) for family, _, _, _, where in found)


def of_one_family(found: Iterable[tuple[socket.AddressFamily, str, int]]) -> tuple[str, ...]:
    """Return the addresses of the family that has most of them; of the first one where they have as many."""
    families: dict[socket.AddressFamily, set[str]] = {}
    for family, ip, port in found:
        text = f"[{ip}]:{port}" if family == socket.AF_INET6 else f"{ip}:{port}"
        families.setdefault(family, set()).add(text)
    return tuple(sorted(max(families.values(), key=len, default=())))


def is_name(address: str) -> bool:
    """Return whether this is HOST:PORT with a name that can be resolved."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or ":" in host or "/" in host:  # IPv6, or another target of gRPC's
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False
