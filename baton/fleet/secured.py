"""What a secured fleet on this machine is made of: certificates, a Redis behind a password, an API key.

The private Redis listens on a unix socket in a folder of this user's, and nowhere else, with a user of its
own that may do what the fleet does and no administration.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path

from baton.security.auth_file import add_key, new_api_key
from baton.security.credentials import Credentials
from baton.security.secret_files import Certificates, replace_secret, write_secret

REDIS_USER = "baton"
DAYS = 365
OWNER = "owner"
"""Who started the fleet: the tenant of the first API key, which may also watch and drain."""


@dataclass(frozen=True, slots=True)
class SecuredFleet:
    """The files of one secured fleet."""

    certificates: Certificates
    api_key: Path

    @property
    def redis_password(self) -> Path:
        return self.certificates.folder / "redis.password"

    @property
    def credentials(self) -> Credentials:
        """A client's, to the fleet's door."""
        made = self.certificates
        return Credentials(made.ca, made.cert("client"), made.key("client"), self.api_key)

    def service_flags(self, kind: str, *, private_redis: bool) -> list[str]:
        """For a service of this kind: router, prefill or decode."""
        made, part = self.certificates, "router" if kind == "router" else "worker"
        flags = ["--tls-ca", made.ca, "--tls-cert", made.cert(part), "--tls-key", made.key(part)]
        if kind == "router":
            flags += ["--client-ca", made.ca, "--door", made.folder / "door.json"]
        if private_redis:
            flags += ["--redis-password-file", self.redis_password]
        return [str(flag) for flag in flags]

    def write_redis_config(self, folder: Path) -> Path:
        """Settings of the private server, for `folder`; the password is in it only as a hash."""
        password = self.redis_password.read_text(encoding="ascii").strip()
        digest = hashlib.sha256(password.encode()).hexdigest()
        users = folder / "users.acl"
        rights = "resetchannels ~{baton}* &{baton}* +@all -@admin -@dangerous +client +info +keys"
        replace_secret(users, f"user default off\nuser {REDIS_USER} on #{digest} {rights}\n".encode())
        return users


def secure(folder: Path, now: dt.datetime) -> SecuredFleet:
    """Makes what is not there yet; certificates anew each time. Raises `ValueError` naming a file."""
    # Here, since launching any other fleet needs none of it.
    from baton.security.certificates import make_certificates  # noqa: PLC0415

    made = SecuredFleet(make_certificates(folder, (), DAYS, now), folder / "api.key")
    if not made.redis_password.exists():
        write_secret(made.redis_password, secrets.token_urlsafe(32).encode())
    if not made.api_key.exists():
        key = new_api_key()
        add_key(folder / "door.json", key, OWNER, operator=True)
        write_secret(made.api_key, f"{key}\n".encode())
    return made
