"""TLS between the fleet's processes: credentials from files, and roles that certificates name.

Every process has a certificate of the fleet's own CA whose DNS name is its role, for example
`worker.baton.internal`. A caller checks for the role it calls, not for a host name, so a wrong address in
Redis cannot lead it to a process of another role. A server checks the caller's role
(`runtime/rpc/role_guard.py`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

Options = Sequence[tuple[str, int | str]]
_OUT_OF_DATE = (9, 10)
"""OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED."""


class CertificateRole(enum.Enum):
    """The role of a certificate's holder: the first label of its DNS name."""

    ROUTER = "router"
    WORKER = "worker"
    CLIENT = "client"
    OPERATOR = "operator"

    @property
    def dns_name(self) -> str:
        """The name among the certificate's subject alternative names."""
        return f"{self.value}.baton.internal"


class TlsUnusable(ValueError):
    """A file that TLS needs is unusable; the message names it and what is wrong."""

    def __init__(self, path: Path, wrong: str) -> None:
        super().__init__(f"{path} {wrong}")
        self.path = path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: the trusted CA, and this process's certificate (with its chain) and key."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True, repr=False)
class FleetTls:
    """The contents of the files. Its repr hides them: one is the private key."""

    ca: bytes
    cert: bytes
    key: bytes

    def server_credentials(self, client_ca: bytes | None) -> grpc.ServerCredentials:
        """Return credentials that require a certificate of `client_ca`; if None, anyone may connect."""
        pairs = [(self.key, self.cert)]
        return grpc.ssl_server_credentials(pairs, client_ca, require_client_auth=client_ca is not None)

    def channel(self, address: str, role: CertificateRole, options: Options) -> grpc.aio.Channel:
        """Return a channel that accepts only a server whose certificate names `role`."""
        all_options = [*options, ("grpc.ssl_target_name_override", role.dns_name)]
        credentials = grpc.ssl_channel_credentials(self.ca, self.key, self.cert)
        return grpc.aio.secure_channel(address, credentials, options=all_options)


def load_tls(files: TlsFiles, role: CertificateRole, now: dt.datetime) -> FleetTls:
    """Read the files, and check that they belong together and that the certificate names `role`."""
    tls = FleetTls(read_pem(files.ca), read_pem(files.cert), read_pem(files.key))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _trying(files.ca, "holds no CA certificate", lambda: context.load_verify_locations(files.ca))
    # For a key with a passphrase, offer an empty one: OpenSSL would ask on the terminal otherwise.
    match = "does not fit the certificate in {}, or one of them is not unencrypted PEM"
    _trying(files.key, match.format(files.cert), lambda: context.load_cert_chain(files.cert, files.key, ""))
    _check_certificate(files, tls, role, now)
    return tls


def check_in_date(cert: Path, key: Path) -> None:
    """Raise `TlsUnusable` unless a server's certificate is valid now.

    For services whose images cannot read certificates: this process shows the certificate to itself.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trying(key, f"does not fit the certificate in {cert}", lambda: server.load_cert_chain(cert, key, ""))
    client.load_verify_locations(cert)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.check_hostname = False
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller, called = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    try:
        for side in (caller, called, caller):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _OUT_OF_DATE:
            raise TlsUnusable(cert, f"is not valid now: {error.verify_message}") from None


def open_channel(
    tls: FleetTls | None, address: str, role: CertificateRole, options: Options
) -> grpc.aio.Channel:
    """Return a channel with mutual TLS, or an unencrypted one in a fleet without certificates."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return tls.channel(address, role, options)


def roles_of(peer: Mapping[str, Iterable[bytes]]) -> frozenset[CertificateRole]:
    """Return the roles that the peer's certificate proves; empty without a certificate."""
    names = set(peer.get("x509_subject_alternative_name", ()))
    return frozenset(role for role in CertificateRole if role.dns_name.encode() in names)


def read_pem(path: Path) -> bytes:
    """Return a file's bytes; raises `TlsUnusable` if it cannot be read or is not PEM."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TlsUnusable(path, f"cannot be read: {os.strerror(error.errno or 0)}") from None
    if b"-----BEGIN " not in content:
        raise TlsUnusable(path, "is not a PEM file")
    return content


def _trying(path: Path, wrong: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (OSError, ValueError):  # an SSLError is an OSError; its text names neither file
        raise TlsUnusable(path, wrong) from None


def _check_certificate(files: TlsFiles, tls: FleetTls, role: CertificateRole, now: dt.datetime) -> None:
    # Imported here because a fleet without TLS should not pay for it.
    from cryptography import x509  # noqa: PLC0415

    certificate, ca = x509.load_pem_x509_certificate(tls.cert), x509.load_pem_x509_certificate(tls.ca)
    for path, checked in ((files.cert, certificate), (files.ca, ca)):
        if not checked.not_valid_before_utc <= now <= checked.not_valid_after_utc:
            first, last = (
                f"{at:%Y-%m-%d %H:%M}" for at in (checked.not_valid_before_utc, checked.not_valid_after_utc)
            )
            raise TlsUnusable(
                path,
                f"is not valid now, {now:%Y-%m-%d %H:%M} UTC by this machine's clock; accepted: a time from "
                f"{first} to {last}",
            )
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    if role.dns_name not in names.value.get_values_for_type(x509.DNSName):
        raise TlsUnusable(
            files.cert, f"is not a {role.value}'s certificate: it does not name {role.dns_name}"
        )
