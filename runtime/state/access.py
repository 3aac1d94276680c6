"""Credentials for Redis, read from files: our certificate and password, and the CA we trust."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """Files with credentials. `ca`, `cert` and `key` are for `rediss://`.

    The password belongs to the URL's user, or to the default user.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    password_file: Path | None = None


UNENCRYPTED = RedisAccess()


class SecretUnusable(ValueError):
    """A credential file is unusable; the message names the file and never shows its content."""


def connection_settings(url: str, access: RedisAccess) -> dict[str, Any]:
    """Return redis-py's arguments besides the URL. Raises `SecretUnusable`."""
    settings: dict[str, Any] = {}
    if access.password_file is not None:
        settings["password"] = read_secret(access.password_file)
    if url.startswith("rediss:"):
        settings |= {
            "ssl_ca_certs": None if access.ca is None else str(access.ca),
            "ssl_certfile": None if access.cert is None else str(access.cert),
            "ssl_keyfile": None if access.key is None else str(access.key),
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        }
        _check(access)
    return settings


def read_secret(path: Path) -> str:
    """Return a file's only line. Raises `SecretUnusable`, which does not show the line."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is not UTF-8"
        raise SecretUnusable(f"{path} cannot be read: {why}") from None
    if not secret or "\n" in secret:
        raise SecretUnusable(f"{path} must contain one line, the password")
    return secret


def _check(access: RedisAccess) -> None:
    """Load the files now: redis-py would report a wrong file as a failed connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if access.ca is not None:
            context.load_verify_locations(access.ca)
    except OSError:
        raise SecretUnusable(f"{access.ca} contains no readable CA certificate") from None
    try:
        if access.cert is not None:
            context.load_cert_chain(access.cert, access.key, "")
    except (OSError, ValueError):
        raise SecretUnusable(f"{access.cert} and {access.key} are not a certificate and its key") from None
