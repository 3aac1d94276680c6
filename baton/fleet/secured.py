"""The files of a secured fleet on this machine: certificates, a password for Redis, and an API key."""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import dataclass
from pathlib import Path

from baton.security.auth_file import add_key, new_api_key
from baton.security.credentials import Credentials
from baton.security.secret_files import Certificates, write_secret

DAYS = 365
OWNER = "owner"
"""The tenant of the first API key, for the person who starts the fleet; the key may also watch and drain."""

GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class SecuredFleet:
    """The files of one secured fleet."""

    certificates: Certificates
    api_key: Path

    @property
    def redis_password_file(self) -> Path:
        return self.certificates.folder / "redis.password"

    def redis_password(self) -> str:
        return self.redis_password_file.read_text(encoding="ascii").strip()

    @property
    def gateway_key(self) -> Path:
        """The key by which gateways run batches, for any tenant."""
        return self.certificates.folder / "delegate.key"

    @property
    def credentials(self) -> Credentials:
        """The credentials of a client of this fleet."""
        made = self.certificates
        return Credentials(made.ca, made.cert("client"), made.key("client"), self.api_key)

    def service_flags(self, kind: str, *, private_redis: bool) -> list[str]:
        """Return the flags of a service of this kind: router, prefill, decode or gateway.

        A gateway shows its certificate to the routers, and to its own clients.
        """
        made, part = self.certificates, kind if kind in {"router", "gateway"} else "worker"
        flags: list[str | Path]
        if kind == "gateway":
            flags = ["--ca", made.ca, "--cert", made.cert(part), "--key", made.key(part)]
            flags += ["--https-cert", made.cert(part), "--https-key", made.key(part)]
            flags += ["--api-key-file", self.gateway_key]
        else:
            flags = ["--tls-ca", made.ca, "--tls-cert", made.cert(part), "--tls-key", made.key(part)]
        if kind == "router":
            flags += ["--client-ca", made.ca, "--door", made.folder / "door.json"]
        if private_redis:
            flags += ["--redis-password-file", self.redis_password_file]
        return [str(flag) for flag in flags]


def secure(folder: Path, now: dt.datetime) -> SecuredFleet:
    """Make the missing files, and new certificates each time. Raises `ValueError` naming a file."""
    # Imported here, because other fleets do not need it.
    from baton.security.certificates import make_certificates  # noqa: PLC0415

    made = SecuredFleet(make_certificates(folder, (), DAYS, now), folder / "api.key")
    if not made.redis_password_file.exists():
        write_secret(made.redis_password_file, secrets.token_urlsafe(32).encode())
    if not made.api_key.exists():
        key = new_api_key()
        add_key(folder / "door.json", key, OWNER, operator=True)
        write_secret(made.api_key, f"{key}\n".encode())
    if not made.gateway_key.exists():
        key = new_api_key()
        add_key(folder / "door.json", key, GATEWAY, classes=("batch",), delegate=True)
        write_secret(made.gateway_key, f"{key}\n".encode())
    return made
