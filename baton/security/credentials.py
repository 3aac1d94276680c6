"""A client's credentials for a secured fleet, and the CA by which it knows that fleet, read from files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from baton.security.secret_files import read_file

Options = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Credentials:
    """PEM files, and a file with the API key or a JWT; raises `ValueError` naming what is wrong.

    `ca` turns on TLS and must have signed the routers' certificates. Fleets with --client-ca require `cert`
    and `key`. The file of the API key is read again for each call, so it may be replaced.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    api_key_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("one of cert and key is missing; accepted: both or neither")
        if self.ca is None and (self.cert is not None or self.api_key_file is not None):
            raise ValueError(
                "ca is missing: without TLS a certificate is useless and others could read a key; "
                "accepted: ca with cert, key or api_key_file"
            )
        self.metadata()

    def channel(self, address: str, options: Options) -> grpc.aio.Channel:
        """Return a channel to a router, which connects with the first call."""
        if self.ca is None:
            return grpc.aio.insecure_channel(address, options=options)
        pem = (None if path is None else read_file(path) for path in (self.ca, self.key, self.cert))
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*pem), options=options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of each call."""
        if self.api_key_file is None:
            return ()
        secret = read_file(self.api_key_file)
        try:
            text = secret.decode("ascii").strip()
        except UnicodeDecodeError:
            text = ""
        if not text or not text.isprintable() or " " in text:
            raise ValueError(f"{self.api_key_file} must contain one line, an API key or a JWT")
        return (("authorization", f"Bearer {text}"),)


UNENCRYPTED = Credentials()
