"""Finds out which process a connection comes from: so one proxy has a link for each of its callers."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

Naming = Callable[[str, int, str], str]
"""Returns the name of the process behind a host and port of "tcp" or "udp"; empty if it is none of ours."""

_MOST_KNOWN = 4096
_MAPPED = "0000000000000000FFFF0000"
"""Before an address of IPv4 that a socket of IPv6 has."""


def nobody(_host: str, _port: int, _protocol: str) -> str:
    """Return no name, for links that make no difference between their callers."""
    return ""


class ByTheirSockets:
    """Looks a caller up by its end of the connection, among the sockets of the processes that it is given."""

    def __init__(self, processes: Callable[[], Mapping[int, str]]) -> None:
        """`processes` returns the name of each process by its id."""
        self._processes = processes
        self._known: dict[str, str] = {}
        """By inode, which the kernel does not give out twice in a while."""

    def name(self, host: str, port: int, protocol: str) -> str:
        """Return the name of the process that has this address of an IPv4 socket."""
        inode = _inode(host, port, protocol)
        if inode not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = [name for pid, name in self._processes().items() if _has(pid, inode)]
            if not found:
                return ""
            self._known[inode] = found[0]
        return self._known[inode]


def _inode(host: str, port: int, protocol: str) -> str:
    """Return the number of the socket; gRPC's are of IPv6 also for addresses of IPv4."""
    # A socket that sends datagrams without being connected has no address of its own.
    at_any = ("0.0.0.0",) if protocol == "udp" else ()
    local = {_entry(local_host, port, mapped) for local_host in (host, *at_any) for mapped in ("", _MAPPED)}
    local |= {f"{'0' * 32}:{port:04X}"} if at_any else set()
    tables = (Path("/proc/net", table) for table in (protocol, f"{protocol}6"))
    for table in filter(Path.exists, tables):
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[1] in local:
                return fields[9]
    return ""


def _entry(host: str, port: int, mapped: str) -> str:
    return f"{mapped}{int.from_bytes(socket.inet_aton(host), 'little'):08X}:{port:04X}"


def _has(pid: int, inode: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # it was closed
                if str(fd.readlink()) == f"socket:[{inode}]":
                    return True
    return False
