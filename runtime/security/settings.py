"""The security settings of a service: its flags, where it may listen, and what it trusts."""

from __future__ import annotations

import argparse
import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runtime.security.tls import CertificateRole, FleetTls, TlsFiles, load_tls


@dataclass(frozen=True, slots=True)
class Security:
    """A service's TLS files and permissions. Without files it is unencrypted, and on loopback only.

    The checks raise `ValueError` naming the flags.
    """

    tls: TlsFiles | None = None
    redis_ca: Path | None = None
    """Default: the fleet's own CA."""
    redis_password_file: Path | None = None
    insecure_listen: bool = False

    def check_listen(self, listen: str) -> None:
        """Refuse an address that other machines can reach unencrypted, unless a flag allows it."""
        if self.tls is None and not self.insecure_listen and not is_loopback(listen):
            raise ValueError(
                f"--listen is {listen!r}, which others can reach, without TLS; accepted: a loopback address, "
                "--tls-ca, --tls-cert and --tls-key, or --insecure-listen where the network itself is trusted"
            )

    def check_redis(self, url: str) -> None:
        """Refuse a password in the URL, which others can read, and unencrypted Redis over a network."""
        authority = url.partition("://")[2].rpartition("@")[0]
        if ":" in authority.rpartition("/")[2] or "password=" in url:
            raise ValueError(
                "--redis holds a password; accepted: redis://USER@HOST:PORT/0 and --redis-password-file"
            )
        if url.startswith("rediss:") and self.tls is None and self.redis_ca is None:
            raise ValueError("--redis asks for TLS; accepted: with --redis-ca, or the three --tls flags")
        if url.startswith("redis:") and not self.insecure_listen:
            host = urlsplit(url).hostname or "localhost"
            if not is_loopback(f"{host}:0"):
                raise ValueError(
                    f"--redis is on {host}, in the clear; accepted: rediss://, a unix socket, a loopback "
                    "address, or --insecure-listen where the network itself is trusted"
                )

    def load(self, role: CertificateRole) -> FleetTls | None:
        """Return the credentials, or None without TLS; raises `TlsUnusable`."""
        if self.tls is None:
            return None
        return load_tls(self.tls, role, dt.datetime.now(dt.UTC))

    def redis_files(self) -> dict[str, Path | None]:
        """Return the files that authenticate this process to Redis, and Redis to it."""
        tls = self.tls
        return {
            "ca": self.redis_ca or (None if tls is None else tls.ca),
            "cert": None if tls is None else tls.cert,
            "key": None if tls is None else tls.key,
            "password_file": self.redis_password_file,
        }

    def describe(self, listen: str) -> dict[str, object]:
        """Return the fields of the line that every service logs at its start."""
        reach = "this machine only" if is_loopback(listen) else "the network"
        return {"listen": listen, "reach": reach, "tls": "off" if self.tls is None else "mutual"}


def add_security_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `security_of` reads."""
    group = parser.add_argument_group("security", "PEM files; see docs/security.md")
    group.add_argument("--tls-ca", type=Path, metavar="FILE", help="the fleet's own CA")
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="this process's certificate")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="the key of that certificate")
    group.add_argument("--redis-ca", type=Path, metavar="FILE", help="the CA of rediss:// (--tls-ca)")
    group.add_argument(
        "--redis-password-file", type=Path, metavar="FILE", help="the password of the user in --redis"
    )
    group.add_argument(
        "--insecure-listen",
        action="store_true",
        help="allow clear text beyond loopback, on a trusted network",
    )


def security_of(values: dict[str, Any]) -> Security:
    """Take the security flags out of `given`, the parsed flags; raises `ValueError`."""
    ca, cert, key = (values.pop(name) for name in ("tls_ca", "tls_cert", "tls_key"))
    missing = [flag for flag, path in (("ca", ca), ("cert", cert), ("key", key)) if path is None]
    if len(missing) in (1, 2):
        raise ValueError(f"--tls-{missing[0]} is missing; accepted: --tls-ca, --tls-cert and --tls-key")
    return Security(
        tls=None if missing else TlsFiles(ca, cert, key),
        redis_ca=values.pop("redis_ca"),
        redis_password_file=values.pop("redis_password_file"),
        insecure_listen=values.pop("insecure_listen"),
    )


def is_loopback(listen: str) -> bool:
    """Return whether only this machine can reach HOST:PORT."""
    host = listen.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
