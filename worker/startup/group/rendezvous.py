"""Connects the processes of a group that a cluster has started, and ends each of them with the others.

They find each other in a store of torch.distributed at rank 0's address: torchrun's own where it has started
them, otherwise one that rank 0 opens. In it rank 0 says on which port it takes connections. Each follower
makes two: steps, logits and KV travel on one, and adapters to load are named on the other. If the fleet has
certificates, these connections use mutual TLS, and both sides are workers. What torch.distributed adds up
travels on connections of its own, which are neither encrypted nor authenticated; between GPUs, logits and KV
travel there too.

Processes that compute on GPUs of one host, which their leader has forked, have links already.
"""

from __future__ import annotations

import datetime as dt
import enum
import os
import secrets
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, Never

import structlog
import torch.distributed

from engine.errors import GroupBrokenError
from engine.group.links import Kind, Link
from engine.group.remote.sums import Connected, gloo, nccl
from engine.model.parallel.part import Part
from runtime.security.tls import CertificateRole, TlsFiles
from worker.errors import EXIT_GROUP
from worker.place import Place

log = structlog.get_logger()

GATHER_S = 600.0
"""For how long processes wait for each other at the start: pods may have to pull an image first."""
GREETING_S = 10.0
"""For how long one that connects may take to say who it is."""
SILENCE_S = 20
"""After how long without a sign of life a host counts as gone."""
RETRY_S = 0.5
"""After how long a follower looks again for a leader that does not take it."""
_LEAVE_S = 5.0
_LOOPBACK = "127.0.0.1"
_NAME_BYTES = 16
"""The length of a group's name, hexadecimal digits that no group has had before."""
_WORD = b"baton-tp"
_GREETING = struct.Struct("<8sqq")
"""_WORD, rank, use."""
_PORT = "baton/leader_port"
_DEVICE = "baton/leader_device"
_ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Use(enum.IntEnum):
    """The uses of a follower's connections, in the order in which it makes them."""

    STEPS = 0
    LOADS = 1


class Members:
    """The connections of this process to the others of its group; a thread watches them."""

    def __init__(self, flag: str, connected: Connected) -> None:
        """`flag` is what asks for several processes, with its value."""
        self.links = connected
        self._flag = flag
        self._is_leader = connected.part.rank == 0
        others = range(1, connected.part.size) if self._is_leader else [0]
        self._rank_of = {
            link.socket.fileno(): rank
            for links in (connected.channels, connected.loads)
            for rank, link in zip(others, links, strict=True)
        }
        self._ending = threading.Lock()
        """Held by the thread that ends the group, or this process because of another one."""
        threading.Thread(target=self._watch, name="members", daemon=True).start()

    def end(self, *, in_order: bool) -> None:
        """End the connections, and with them the other processes: in order too if this is the leader."""
        self._ending.acquire()  # for good: the watching thread has nothing more to do
        for channel in self.links.channels if in_order and self._is_leader else ():
            with suppress(GroupBrokenError):
                channel.send(Kind.END, [])
        for link in self.links.links:
            link.close()

    def _watch(self) -> None:
        poll = select.poll()
        for fileno in self._rank_of:
            poll.register(fileno, _ENDED)
        fileno = poll.poll()[0][0]
        if not self._is_leader:
            time.sleep(_LEAVE_S)  # the main thread may be about to read why
        with self._ending:
            self._leave(self._rank_of[fileno])

    def _leave(self, rank: int) -> Never:
        sentence = f"{self._flag}: its process of rank {rank} is gone; this process cannot go on without it\n"
        os.write(sys.stderr.fileno(), sentence.encode())
        os._exit(EXIT_GROUP)


def connect(place: Place, tls: TlsFiles | None, device: str = "cpu") -> Connected:
    """Connect this process with the others of its group, all of which compute on a `cpu` or `cuda` device.

    Raises OSError or RuntimeError if one does not come in time, is gone again, or computes elsewhere.
    """
    until = time.monotonic() + GATHER_S
    store = _store(place)
    if place.rank == 0:
        store.set(_DEVICE, device)
        name = secrets.token_hex(_NAME_BYTES // 2)
        channels, loads = _followers(place, name, store, tls, until)
    else:
        name, channel, of_loads = _leader(place, store, tls, until)
        channels, loads = [channel], [of_loads]
        if (theirs := store.get(_DEVICE).decode()) != device:
            raise ConnectionError(f"--device is {device} here and {theirs} at rank 0; accepted: the same")
    part, address = Part(place.rank, place.size), _plain(channels[0].socket.getsockname()[0])
    # The store may have keys of a group that was here before this one.
    library: Any = torch.distributed
    own = library.PrefixStore(f"baton/{name}", store)
    return _connected(part, channels, loads, own, address, device)


def connect_here(
    part: Part, channels: Sequence[Link], loads: Sequence[Link], port: int, device: str, fd: int = -1
) -> Connected:
    """Connect this process with those of its host that compute with it, to which it has links.

    They find each other at a port of loopback, on which rank 0 has a socket `fd` that listens; it is closed
    with the store. Raises OSError or RuntimeError if one does not come in time.
    """
    library: Any = torch.distributed
    timeout = dt.timedelta(seconds=GATHER_S)
    store = library.TCPStore(
        _LOOPBACK, port, part.size, part.rank == 0, timeout, wait_for_workers=False,
        master_listen_fd=None if part.rank else fd,
    )  # fmt: skip
    return _connected(part, channels, loads, store, _LOOPBACK, device)


def _connected(
    part: Part, channels: Sequence[Link], loads: Sequence[Link], store: Any, address: str, device: str
) -> Connected:
    if device == "cuda":
        return Connected.on_gpus(part, channels, loads, nccl(store, part))
    return Connected.on_cpus(part, channels, loads, gloo(store, part, address))


def _store(place: Place) -> Any:
    """Return the store of torch.distributed that all processes of the group reach."""
    url = "env://" if place.is_torchrun else f"tcp://{place.address}:{place.port}"
    library: Any = torch.distributed
    found = library.rendezvous(url, place.rank, place.size, timeout=dt.timedelta(seconds=GATHER_S))
    return next(found)[0]


def _plain(address: str) -> str:
    """Return an address without the prefix that an IPv4 address has on a socket for IPv6."""
    return address.removeprefix("::ffff:")


def _followers(
    place: Place, name: str, store: Any, tls: TlsFiles | None, until: float
) -> tuple[list[Link], list[Link]]:
    """Return the connections of all followers, by use and rank, once they know the name of the group."""
    links: dict[tuple[Use, int], Link] = {}
    ranks = range(1, place.size)
    context = None if tls is None else _context(tls, ssl.PROTOCOL_TLS_SERVER)
    with closing(_listener()) as listener:
        store.set(_PORT, str(listener.getsockname()[1]))
        while len(links) < len(Use) * len(ranks):
            listener.settimeout(max(0.0, until - time.monotonic()))
            connection, address = listener.accept()
            try:
                connection = _secured(connection, context)
                rank, use = _greeted(connection, place)
                if (use, rank) in links:
                    raise ValueError(f"there is a rank {rank} already")
                connection.sendall(_WORD + name.encode())
            except (OSError, ValueError) as error:
                log.warning("not_of_the_group", peer=_plain(address[0]), reason=str(error))
                connection.close()
                continue
            links[use, rank] = _channel(connection)
            if use is Use.STEPS:
                log.info("joined", rank=rank, peer=_plain(address[0]))
    return [links[Use.STEPS, rank] for rank in ranks], [links[Use.LOADS, rank] for rank in ranks]


def _listener() -> socket.socket:
    """Return a socket that listens on a free port of all addresses, of IPv6 too where there is IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _secured(connection: socket.socket, context: ssl.SSLContext | None) -> socket.socket:
    """Return a connection that was taken, with TLS if there is a context; its user is not known yet."""
    connection.settimeout(GREETING_S)
    return connection if context is None else context.wrap_socket(connection, server_side=True)


def _greeted(connection: socket.socket, place: Place) -> tuple[int, Use]:
    """Return the rank of the follower that has connected, and what for.

    Raises OSError or ValueError if it is none.
    """
    if isinstance(connection, ssl.SSLSocket):
        certificate: Any = connection.getpeercert()
        names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
        if CertificateRole.WORKER.dns_name not in names:
            raise ValueError(f"its certificate names {names}; accepted: {CertificateRole.WORKER.dns_name}")
    greeting = connection.recv(_GREETING.size)
    if len(greeting) < _GREETING.size or not greeting.startswith(_WORD):
        raise ValueError("it does not greet as a follower")
    _, rank, use = _GREETING.unpack(greeting)
    if not 1 <= rank < place.size:
        raise ValueError(f"its rank is {rank}; accepted: 1 to {place.size - 1}")
    return rank, Use(use)


def _leader(place: Place, store: Any, tls: TlsFiles | None, until: float) -> tuple[str, Link, Link]:
    """Return the name of the group, and this follower's connections to its leader, by use.

    Raises OSError if no leader takes this follower in time, or one does not take both.
    """
    name, port, steps = _awaited(place, store, tls, until)
    # This leader is there, and takes one connection after the other, those of strangers too.
    again, loads = _joined(place, port, Use.LOADS, tls, max(GREETING_S, until - time.monotonic()))
    if again != name:
        raise ConnectionError(f"port {port} has the leader of another group by now")
    return name, steps, loads


def _awaited(place: Place, store: Any, tls: TlsFiles | None, until: float) -> tuple[str, int, Link]:
    """Return the name of the group, its leader's port, and this follower's first connection to it."""
    while True:
        try:
            port = int(store.get(_PORT))
            name, link = _joined(place, port, Use.STEPS, tls, GREETING_S)
        except ssl.SSLCertVerificationError:
            raise
        except OSError as error:
            # Until the leader has written its port, the store may have that of a leader before it.
            if time.monotonic() + RETRY_S > until:
                raise
            log.info("leader_awaited", leader=place.address, reason=str(error))
            time.sleep(RETRY_S)
        else:
            return name, port, link


def _joined(place: Place, port: int, use: Use, tls: TlsFiles | None, timeout_s: float) -> tuple[str, Link]:
    """Return the name of the group, and a connection to its leader for a use.

    Raises OSError if no leader takes this follower at this port in time.
    """
    connection: socket.socket = socket.create_connection((place.address, port), timeout=timeout_s)
    try:
        if tls is not None:
            context = _context(tls, ssl.PROTOCOL_TLS_CLIENT)
            connection = context.wrap_socket(connection, server_hostname=CertificateRole.WORKER.dns_name)
        connection.sendall(_GREETING.pack(_WORD, place.rank, use))
        answer = connection.recv(len(_WORD) + _NAME_BYTES)
        if len(answer) < len(_WORD) + _NAME_BYTES or not answer.startswith(_WORD):
            raise ConnectionError(f"port {port} is not of a leader that waits for rank {place.rank}")
    except OSError:
        connection.close()
        raise
    return answer[len(_WORD) :].decode(), _channel(connection)


def _context(tls: TlsFiles, protocol: int) -> ssl.SSLContext:
    """Return a context for mutual TLS with the fleet's certificates."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.cert, tls.key, "")
    return context


def _channel(connection: socket.socket) -> Link:
    """Let a connection send at once and without limit of time, and end soon if the other host is gone."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, SILENCE_S // 4),
        (socket.TCP_KEEPINTVL, SILENCE_S // 4),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, SILENCE_S * 1000),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return Link(connection)
