"""The door's file: tenants and their budgets, hashed API keys, and whose tokens are accepted.

    {"tenants": {"acme": {"requests_per_s": 5, "request_burst": 10, "tokens_per_s": 2000}},
     "keys": [{"sha256": "<hex>", "tenant": "acme", "classes": ["standard", "batch"], "operator": false}],
     "jwt": {"algorithm": "RS256", "key_file": "issuer.pem", "issuer": "...", "audience": "baton"}}

API keys are random, 256 bits long: one round of SHA-256 hides them. Paths are relative to the file's folder.
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
from router.errors import Reason, Unauthenticated
from scheduling.admission.budgets import UNLIMITED, Budget, Rate

Json = Mapping[str, Any]


class DoorFileUnusable(ValueError):
    """The message names the file and what is wrong with it, and shows no secret."""

    def __init__(self, path: Path, wrong: str) -> None:
        super().__init__(f"{path}: {wrong}")
        self.path = path


@dataclass(frozen=True, slots=True)
class DoorRules:
    """What one reading of the file says."""

    keys: tuple[tuple[bytes, Principal], ...] = field(repr=False)
    tokens: TokenRules | None
    budgets: Mapping[str, Budget]

    def principal_of(self, credential: str) -> Principal:
        """Raises `Unauthenticated`. A token has two dots, a key none."""
        if self.tokens is not None and credential.count(".") == 2:
            return self.tokens.verify(credential, self.budgets)
        digest = hashlib.sha256(credential.encode()).digest()
        found = None
        for known, principal in self.keys:  # all of them, so that the time taken tells nothing
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise Unauthenticated(Reason.CREDENTIAL_INVALID, "the API key is not known here")
        return found


def read_rules(path: Path) -> DoorRules:
    """Raises `DoorFileUnusable`."""
    try:
        said = json.loads(_read(path))
        if not isinstance(said, dict):
            raise ValueError("it must hold one JSON object")  # noqa: TRY004 - told as all else that is wrong
        _only(said, "the file", {"tenants", "keys", "jwt"})
        budgets = {name: _budget(name, one) for name, one in said.get("tenants", {}).items()}
        keys = tuple(_key(place, one, budgets) for place, one in enumerate(said.get("keys", [])))
        tokens = _tokens(path, said["jwt"]) if "jwt" in said else None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        if isinstance(error, DoorFileUnusable):
            raise
        wrong = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DoorFileUnusable(path, wrong) from None
    return DoorRules(keys, tokens, budgets)


def _budget(tenant: str, said: Json) -> Budget:
    _only(said, f"tenant {tenant!r}", {"requests_per_s", "request_burst", "tokens_per_s", "token_burst"})
    return Budget(_rate(said, "requests_per_s", "request_burst"), _rate(said, "tokens_per_s", "token_burst"))


def _rate(said: Json, per_s: str, burst: str) -> Rate | None:
    """A second's worth is the burst where none is stated, and at least one of what is counted."""
    if per_s not in said:
        if burst in said:
            raise ValueError(f"{burst} without {per_s}")
        return None
    return Rate(float(said[per_s]), float(said.get(burst, max(1.0, float(said[per_s])))))


def _key(place: int, said: Json, budgets: Mapping[str, Budget]) -> tuple[bytes, Principal]:
    where = f"keys[{place}]"
    _only(said, where, {"sha256", "tenant", "classes", "operator"})
    try:
        digest = bytes.fromhex(said["sha256"])
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"{where}.sha256 must be the 64 hexadecimal digits of a SHA-256")
    tenant, operator = said["tenant"], said.get("operator", False)
    if not isinstance(tenant, str) or not tenant or not isinstance(operator, bool):
        raise ValueError(f"{where} needs a tenant's name, and operator may be true or false")
    classes = parse_classes(said.get("classes"))
    return digest, Principal(tenant, classes, operator, budgets.get(tenant, UNLIMITED))


def _tokens(path: Path, said: Json) -> TokenRules:
    names = {"algorithm", "key_file", "issuer", "audience", "leeway_s", "tenant_claim"}
    _only(said, "jwt", names)
    given = {name: said[name] for name in names & set(said) - {"key_file"}}
    return TokenRules(**given, key=_read(path.parent / said["key_file"]).strip())


def _only(said: Json, where: str, known: set[str]) -> None:
    unknown = set(said) - known
    if unknown:
        raise ValueError(f"{where} has {sorted(unknown)}; accepted: {', '.join(sorted(known))}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DoorFileUnusable(path, f"it cannot be read: {os.strerror(error.errno or 0)}") from None
