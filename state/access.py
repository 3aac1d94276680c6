"""How to prove to Redis who we are, and how it proves to be the fleet's: files only."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RedisAccess:
    """`ca`, `cert` and `key` are for `rediss://`; the password is of the URL's user, or the default one."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    password_file: Path | None = None


IN_THE_CLEAR = RedisAccess()


class SecretUnusable(ValueError):
    """A file that Redis's door needs is no good; the message names it, and never what is in it."""


def connection_settings(url: str, access: RedisAccess) -> dict[str, Any]:
    """What redis-py takes besides the URL. Raises `SecretUnusable`."""
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
    """A file's only line. Raises `SecretUnusable`, without the line."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is no UTF-8"
        raise SecretUnusable(f"{path} cannot be read: {why}") from None
    if not secret or "\n" in secret:
        raise SecretUnusable(f"{path} must hold one line, the password")
    return secret


def _check(access: RedisAccess) -> None:
    """Here, so that it is told as a wrong file and not as a Redis that does not answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if access.ca is not None:
            context.load_verify_locations(access.ca)
    except OSError:
        raise SecretUnusable(f"{access.ca} holds no CA certificate that can be read") from None
    try:
        if access.cert is not None:
            context.load_cert_chain(access.cert, access.key, "")
    except (OSError, ValueError):
        raise SecretUnusable(f"{access.cert} and {access.key} are no certificate and its key") from None
