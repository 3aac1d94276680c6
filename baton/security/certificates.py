"""The fleet's own certificate authority, and the certificates of its processes.

A certificate's DNS name `<role>.baton.internal` is its holder's role in the fleet. The host names and
addresses beside it are those that clients connect to. Certificates of clients cannot serve, and name no host.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from baton.security.secret_files import Certificates, replace_secret, write_secret

SERVES, CALLS = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
PARTS = {
    "router": (SERVES, CALLS),
    "worker": (SERVES, CALLS),
    "gateway": (SERVES, CALLS),
    "redis": (SERVES,),
    "client": (CALLS,),
    "operator": (CALLS,),
}
"""The uses of each part's certificate."""
HERE = ("localhost", "127.0.0.1", "::1")
CA_DAYS = 3650
_BACKDATED = dt.timedelta(minutes=5)
"""For hosts whose clocks are behind."""

Key = ec.EllipticCurvePrivateKey


def make_certificates(folder: Path, hosts: Sequence[str], days: int, now: dt.datetime) -> Certificates:
    """Make certificates for all parts, with keys that only this user can read.

    An existing CA signs, and existing certificates are renewed. Raises `ValueError` naming a file that cannot
    be read or written, or that a new CA would make invalid.
    """
    made = Certificates(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority, ca_key = _load_ca(made) if made.ca_key.exists() else _make_ca(made, now)
        for part, usages in PARTS.items():
            names = [f"{part}.baton.internal", *(() if SERVES not in usages else (*HERE, *hosts))]
            _make_leaf(made, part, usages, names, (authority, ca_key), now, days)
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be used: {os.strerror(error.errno or 0)}") from None
    return made


def _make_ca(made: Certificates, now: dt.datetime) -> tuple[x509.Certificate, Key]:
    _refuse_others(made)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Baton fleet CA")
    builder = _builder(name, name, key, now, CA_DAYS, path_length=0)
    authority = builder.sign(key, hashes.SHA256())
    write_secret(made.ca_key, _pem(key))
    made.ca.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return authority, key


def _refuse_others(made: Certificates) -> None:
    """Refuse a folder with certificates but no CA key: a new CA would not trust them."""
    paths = [made.ca, *(path for part in PARTS for path in (made.cert(part), made.key(part)))]
    found = next((path for path in paths if path.exists()), None)
    if found is not None:
        raise ValueError(
            f"{found} exists, but {made.ca_key.name} is missing; accepted: the CA's key beside it, to renew "
            "certificates, or a new folder for a new CA"
        )


def _load_ca(made: Certificates) -> tuple[x509.Certificate, Key]:
    try:
        authority = x509.load_pem_x509_certificate(made.ca.read_bytes())
        key = serialization.load_pem_private_key(made.ca_key.read_bytes(), password=None)
    except (ValueError, TypeError):
        raise ValueError(f"{made.ca} and {made.ca_key} are not a CA of `baton certs`") from None
    if not isinstance(key, Key) or key.public_key() != authority.public_key():
        raise ValueError(f"{made.ca_key} is not the key of {made.ca}")
    return authority, key


def _make_leaf(
    made: Certificates,
    part: str,
    usages: Sequence[x509.ObjectIdentifier],
    names: Sequence[str],
    signer: tuple[x509.Certificate, Key],
    now: dt.datetime,
    days: int,
) -> None:
    authority, ca_key = signer
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(dt.timedelta(days=days), authority.not_valid_after_utc - now)
    builder = _builder(_name(f"{part}.baton.internal"), authority.subject, key, now, until.days)
    for extension in (
        x509.ExtendedKeyUsage(usages),
        x509.SubjectAlternativeName([general_name(name) for name in names]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
    ):
        builder = builder.add_extension(extension, critical=False)
    replace_secret(made.key(part), _pem(key))
    certificate = builder.sign(ca_key, hashes.SHA256())
    made.cert(part).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: Key,
    now: dt.datetime,
    days: int,
    path_length: int | None = None,
) -> x509.CertificateBuilder:
    """Start a certificate: of a CA, which signs others, if it has a `path_length`."""
    is_ca = path_length is not None
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + dt.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=path_length), critical=True)
        .add_extension(_key_usage(signs=is_ca), critical=True)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    off = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **off)


def _pem(key: Key) -> bytes:
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, pkcs8, plain)
