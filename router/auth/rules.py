"""Read the file of --door: tenants and their budgets, hashed API keys, and the accepted token issuer.

    {"tenants": {"acme": {"requests_per_s": 5, "request_burst": 10, "tokens_per_s": 2000}},
     "keys": [{"sha256": "<hex>", "tenant": "acme", "classes": ["standard", "batch"], "operator": false,
               "delegate": false}],
     "jwt": {"algorithm": "RS256", "key_file": "issuer.pem", "issuer": "...", "audience": "baton"}}

API keys are random and 256 bits long, so one round of SHA-256 hides them. Paths are relative to the file's
folder.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.auth.principal import Principal
from router.auth.tokens import TokenRules, parse_classes
from router.errors import NotAllowed, Reason, Unauthenticated
from router.intake.validation import check_name
from scheduling.admission.budgets import UNLIMITED, Budget, Rate

Json = Mapping[str, Any]


class AuthFileUnusable(ValueError):
    """The file cannot be used. The message names the file and the mistake, and shows no secret."""

    def __init__(self, path: Path, wrong: str) -> None:
        super().__init__(f"{path}: {wrong}")


@dataclass(frozen=True, slots=True)
class AuthRules:
    """The contents of the file."""

    keys: tuple[tuple[bytes, Principal], ...] = field(repr=False)
    tokens: TokenRules | None
    budgets: Mapping[str, Budget]

    def principal_of(self, credential: str) -> Principal:
        """Return the holder of a key or token. Raises `Unauthenticated`. Only tokens contain dots."""
        if self.tokens is not None and credential.count(".") == 2:
            return self.tokens.verify(credential, self.budgets)
        digest = hashlib.sha256(credential.encode()).digest()
        found = None
        for known, principal in self.keys:  # all of them, so that the time taken reveals nothing
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise Unauthenticated(Reason.CREDENTIAL_INVALID, "the API key is not known here")
        return found

    def acting_for(self, principal: Principal, tenant: str) -> Principal:
        """Return the caller as this tenant, with its budget. Raises `NotAllowed` unless it is a delegate."""
        if not principal.delegate:
            raise NotAllowed(
                Reason.TENANT_NOT_ALLOWED,
                "the call acts for a tenant; accepted: without x-baton-tenant, or from a delegate's key",
            )
        check_name("tenant", tenant)
        return Principal(tenant, principal.classes, budget=self.budgets.get(tenant, UNLIMITED))


def read_rules(path: Path) -> AuthRules:
    """Read and check the file. Raises `AuthFileUnusable`."""
    try:
        content = json.loads(_read(path))
        if not isinstance(content, dict):
            raise ValueError("it must contain one JSON object")  # noqa: TRY004 - reported like other mistakes
        _check_names(content, "the file", {"tenants", "keys", "jwt"})
        budgets = {name: _budget(name, entry) for name, entry in content.get("tenants", {}).items()}
        keys = tuple(_key(place, entry, budgets) for place, entry in enumerate(content.get("keys", [])))
        tokens = _tokens(path, content["jwt"]) if "jwt" in content else None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        if isinstance(error, AuthFileUnusable):
            raise
        wrong = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise AuthFileUnusable(path, wrong) from None
    return AuthRules(keys, tokens, budgets)


def _budget(tenant: str, entry: Json) -> Budget:
    names = {"requests_per_s", "request_burst", "tokens_per_s", "token_burst"}
    _check_names(entry, f"tenant {tenant!r}", names)
    return Budget(
        _rate(entry, "requests_per_s", "request_burst"), _rate(entry, "tokens_per_s", "token_burst")
    )


def _rate(entry: Json, per_s: str, burst: str) -> Rate | None:
    """Return a rate. The default burst is the amount of one second, and at least 1."""
    if per_s not in entry:
        if burst in entry:
            raise ValueError(f"{burst} is set without {per_s}; accepted: both, or {per_s} alone")
        return None
    return Rate(float(entry[per_s]), float(entry.get(burst, max(1.0, float(entry[per_s])))))


def _key(place: int, entry: Json, budgets: Mapping[str, Budget]) -> tuple[bytes, Principal]:
    where = f"keys[{place}]"
    _check_names(entry, where, {"sha256", "tenant", "classes", "operator", "delegate"})
    try:
        digest = bytes.fromhex(entry["sha256"])
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"{where}.sha256 must be the 64 hexadecimal digits of a SHA-256")
    tenant, flags = entry["tenant"], [entry.get(name, False) for name in ("operator", "delegate")]
    if not isinstance(tenant, str) or not tenant or not all(isinstance(flag, bool) for flag in flags):
        raise ValueError(f"{where} needs a tenant's name, and operator and delegate may be true or false")
    operator, delegate = flags
    classes = parse_classes(entry.get("classes"))
    return digest, Principal(tenant, classes, operator, budgets.get(tenant, UNLIMITED), delegate)


def _tokens(path: Path, entry: Json) -> TokenRules:
    names = {"algorithm", "key_file", "issuer", "audience", "leeway_s", "tenant_claim"}
    _check_names(entry, "jwt", names)
    given = {name: entry[name] for name in names & set(entry) - {"key_file"}}
    return TokenRules(**given, key=_read(path.parent / entry["key_file"]).strip())


def _check_names(entry: Json, where: str, known: set[str]) -> None:
    unknown = set(entry) - known
    if unknown:
        raise ValueError(f"{where} has {sorted(unknown)}; accepted: {', '.join(sorted(known))}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AuthFileUnusable(path, f"it cannot be read: {os.strerror(error.errno or 0)}") from None
