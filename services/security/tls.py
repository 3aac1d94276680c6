"""TLS between the fleet's parts: credentials from files, and roles that certificates name.

Every part holds a certificate of the fleet's own CA whose DNS name says what it is, for example
`worker.baton.internal`. A caller demands the name of the role it calls, not of a host: an address that was
read from Redis can lead it to no other part. A server looks for the caller's name (`role_guard.py`).
"""

from __future__ import annotations

import datetime as dt
import enum
import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

Options = Sequence[tuple[str, int | str]]


class Role(enum.Enum):
    """Who a certificate says its holder is, by the first label of its name."""

    ROUTER = "router"
    WORKER = "worker"
    CLIENT = "client"

    @property
    def dns_name(self) -> str:
        """What the certificate's subject alternative names hold."""
        return f"{self.value}.baton.internal"


class TlsUnusable(ValueError):
    """A file that TLS needs is no good; the message names it and what is wrong."""

    def __init__(self, path: Path, wrong: str) -> None:
        super().__init__(f"{path} {wrong}")
        self.path = path
        self.wrong = wrong


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the CA that is trusted, and this process's own certificate (with its chain) and key."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True, repr=False)
class FleetTls:
    """What was read from the files. Never shown: it holds the private key."""

    ca: bytes
    cert: bytes
    key: bytes

    def server_credentials(self, client_ca: bytes | None) -> grpc.ServerCredentials:
        """Callers must present a certificate of `client_ca`; without one, any caller may connect."""
        pairs = [(self.key, self.cert)]
        return grpc.ssl_server_credentials(pairs, client_ca, require_client_auth=client_ca is not None)

    def channel(self, address: str, role: Role, options: Options) -> grpc.aio.Channel:
        """To a part of the fleet that proves to be of `role`."""
        named = [*options, ("grpc.ssl_target_name_override", role.dns_name)]
        credentials = grpc.ssl_channel_credentials(self.ca, self.key, self.cert)
        return grpc.aio.secure_channel(address, credentials, options=named)


def load_tls(files: TlsFiles, role: Role, now: dt.datetime) -> FleetTls:
    """The files' contents, once they have proved to fit together and to make their holder a `role`."""
    tls = FleetTls(read_pem(files.ca), read_pem(files.cert), read_pem(files.key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _trying(files.ca, "holds no CA certificate", lambda: context.load_verify_locations(files.ca))
    # A key with a passphrase: an empty one is offered, or OpenSSL would ask on the terminal.
    match = "does not fit the certificate in {}, or one of them is no unencrypted PEM"
    _trying(files.key, match.format(files.cert), lambda: context.load_cert_chain(files.cert, files.key, ""))
    _check_certificate(files, tls, role, now)
    return tls


def open_channel(tls: FleetTls | None, address: str, role: Role, options: Options) -> grpc.aio.Channel:
    """As the fleet talks: with mTLS, or in the clear where it was started without certificates."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return tls.channel(address, role, options)


def roles_of(peer: Mapping[str, Iterable[bytes]]) -> frozenset[Role]:
    """What a connection's peer proved to be; nothing for one without a certificate."""
    names = set(peer.get("x509_subject_alternative_name", ()))
    return frozenset(role for role in Role if role.dns_name.encode() in names)


def read_pem(path: Path) -> bytes:
    """A file's bytes; raises `TlsUnusable` when it cannot be read or is no PEM."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TlsUnusable(path, f"cannot be read: {os.strerror(error.errno or 0)}") from None
    if b"-----BEGIN " not in content:
        raise TlsUnusable(path, "is no PEM file")
    return content


def _trying(path: Path, wrong: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError):  # an SSLError is an OSError; its text names neither file
        raise TlsUnusable(path, wrong) from None


def _check_certificate(files: TlsFiles, tls: FleetTls, role: Role, now: dt.datetime) -> None:
    # Only where there is TLS: a fleet without it does not pay for the import.
    from cryptography import x509  # noqa: PLC0415

    certificate, ca = x509.load_pem_x509_certificate(tls.cert), x509.load_pem_x509_certificate(tls.ca)
    for path, one in ((files.cert, certificate), (files.ca, ca)):
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            raise TlsUnusable(
                path, f"is not valid now, only until {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
            )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    if role.dns_name not in names.value.get_values_for_type(x509.DNSName):
        raise TlsUnusable(files.cert, f"is no {role.value}'s: it does not name {role.dns_name}")
