"""Find out why a router that listens cannot be called: TLS on one side only, or unsuitable certificates."""

from __future__ import annotations

import asyncio
import enum
import socket
import ssl
from dataclasses import dataclass

from baton.errors import Unavailable
from baton.security.credentials import Credentials

_LIMIT_S = 1.0
# An HTTP/2 client's first bytes, with an empty SETTINGS frame; a server answers with a SETTINGS frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_HEADER_BYTES = 9
_SETTINGS = 4
# X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL.
_WRONG_HOST_CODES = (62, 64)


class Obstacle(enum.Enum):
    """A probe's finding; the value completes a sentence that begins with the address."""

    SPEAKS_TLS = "speaks TLS"
    SPEAKS_NO_TLS = "does not speak TLS"
    UNTRUSTED = "shows a certificate that does not verify"
    WRONG_HOST = "shows a certificate of another host"
    HANGS_UP = "hangs up after the TLS handshake"
    NO_GRPC = "does not speak HTTP/2, and so no gRPC"


_ADVICE = {
    Obstacle.SPEAKS_TLS: "give Credentials with the fleet's ca",
    Obstacle.SPEAKS_NO_TLS: "leave out the Credentials",
    Obstacle.UNTRUSTED: "give Credentials with the ca of this fleet",
    Obstacle.WRONG_HOST: "use a name or address that the certificate is for",
    Obstacle.HANGS_UP: "it may ask for a client's certificate of its own CA, cert and key of Credentials",
    Obstacle.NO_GRPC: "use the address of a router",
}


@dataclass(frozen=True, slots=True)
class Found:
    """An obstacle, and the TLS library's words for it."""

    obstacle: Obstacle
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.obstacle.value} ({self.detail})" if self.detail else self.obstacle.value


class Blocked(Unavailable):
    """The router listens, but an obstacle keeps this client from calling it."""

    def __init__(self, found: Found, address: str) -> None:
        super().__init__(f"it {found}: {_ADVICE[found.obstacle]}", address)
        self.found = found


async def explained(error: Unavailable, server_name: str = "", *, credentials: Credentials) -> Unavailable:
    """Return `error`, or an error with the finding of a probe of its address, caused by `error`.

    `server_name` is the name that the certificate is for, if that is not the host of the address.
    """
    if error.reason or "errors resolving" in str(error):  # a router sent it, or there is nothing to probe
        return error
    try:
        found = await asyncio.to_thread(probe, error.address, credentials, server_name)
    except (OSError, RuntimeError):  # no descriptor, or no thread, to probe with
        return error
    if found is None:
        return error
    blocked = Blocked(found, error.address)
    blocked.__cause__ = error
    return blocked


def probe(address: str, credentials: Credentials, server_name: str = "") -> Found | None:
    """Connect as a client with these credentials; return None if nothing is wrong, or nothing answers."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():  # another kind of gRPC target
        return None
    server = _Server(host.strip("[]"), int(port), server_name or host.strip("[]"))
    try:
        return _probe_unencrypted(server) if credentials.ca is None else _probe_tls(server, credentials)
    except (OSError, UnicodeError, OverflowError):  # nothing listens there or responds in time
        return None


def _probe_unencrypted(server: _Server) -> Found | None:
    response = server.plain_response()
    if _is_settings(response):
        return None
    if server.speaks_tls():
        return Found(Obstacle.SPEAKS_TLS)
    return Found(Obstacle.NO_GRPC) if response else None


def _probe_tls(server: _Server, credentials: Credentials) -> Found | None:
    if not server.speaks_tls():
        response = server.plain_response()
        if _is_settings(response):
            return Found(Obstacle.SPEAKS_NO_TLS)
        return Found(Obstacle.NO_GRPC) if response else None
    try:
        response = server.tls_response(_verifying(credentials))
    except ssl.SSLCertVerificationError as error:
        wrong_host = error.verify_code in _WRONG_HOST_CODES
        return Found(Obstacle.WRONG_HOST if wrong_host else Obstacle.UNTRUSTED, error.verify_message)
    except ssl.SSLError as error:
        return Found(Obstacle.HANGS_UP, error.reason) if _is_alert(error) else None
    if _is_settings(response):
        return None
    return Found(Obstacle.NO_GRPC if response else Obstacle.HANGS_UP)


@dataclass(frozen=True, slots=True)
class _Server:
    """An address where a router may listen. Each method opens a new connection and may raise `OSError`."""

    host: str
    port: int
    name: str

    def plain_response(self) -> bytes:
        """Return the first bytes after an HTTP/2 preface; none if the server hangs up."""
        with self._connected() as plain:
            return _response(plain)

    def tls_response(self, context: ssl.SSLContext) -> bytes:
        """Return the same after a TLS handshake."""
        with self._connected() as plain, context.wrap_socket(plain, server_hostname=self.name) as tls:
            return _response(tls)

    def speaks_tls(self) -> bool:
        """Return whether the server takes part in a handshake, however that ends."""
        try:
            with self._connected() as plain, _trusting().wrap_socket(plain, server_hostname=self.name):
                return True
        except ssl.SSLError as error:
            return _is_alert(error)
        except ConnectionError:
            return False

    def _connected(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=_LIMIT_S)


def _response(connection: socket.socket) -> bytes:
    received = b""
    try:
        connection.sendall(_PREFACE)
        while len(received) < _FRAME_HEADER_BYTES:
            some = connection.recv(_FRAME_HEADER_BYTES - len(received))
            if not some:
                break
            received += some
    except (ConnectionError, ssl.SSLEOFError):  # it hung up
        pass
    return received


def _is_settings(response: bytes) -> bool:
    return len(response) == _FRAME_HEADER_BYTES and response[3] == _SETTINGS


def _is_alert(error: ssl.SSLError) -> bool:
    """Return True for a TLS alert: only a peer that speaks TLS sends one."""
    return "ALERT" in (error.reason or "")


def _trusting() -> ssl.SSLContext:
    """Return a context that accepts any certificate: it only finds out if there is TLS, and sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _verifying(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(credentials.ca)
    context.set_alpn_protocols(["h2"])
    if credentials.cert is not None:
        context.load_cert_chain(credentials.cert, credentials.key)
    return context
