"""Verify JSON Web Tokens of one algorithm, key, issuer and audience, which the operator chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt

from router.auth.principal import ALL_CLASSES, Principal
from router.errors import Reason, Unauthenticated
from scheduling.admission.budgets import UNLIMITED, Budget
from scheduling.request import SloClass

ALGORITHMS = ("RS256", "ES256", "HS256")
MIN_SECRET_BYTES = 32
"""The length of an HS256 digest; a shorter secret can be guessed from a single token."""

_WHY: tuple[tuple[type[jwt.InvalidTokenError], str], ...] = (
    (jwt.ExpiredSignatureError, "has expired"),
    (jwt.ImmatureSignatureError, "is not valid yet"),
    (jwt.InvalidAudienceError, "is for another audience"),
    (jwt.InvalidIssuerError, "is from another issuer"),
    (jwt.MissingRequiredClaimError, "lacks one of the claims exp, iss and aud"),
    (jwt.InvalidAlgorithmError, "is signed with an algorithm that is not accepted here"),
    (jwt.InvalidSignatureError, "has a signature that is not its issuer's"),
)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """The accepted tokens. `key` is the issuer's public key in PEM, or the shared secret of HS256.

    Raises `ValueError`.
    """

    algorithm: str
    issuer: str
    audience: str
    key: bytes = field(repr=False)
    leeway_s: float = 10.0
    tenant_claim: str = "tenant"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm is {self.algorithm!r}; accepted: {', '.join(ALGORITHMS)}")
        if not self.issuer or not self.audience:
            raise ValueError("issuer or audience is empty; accepted: both named")
        if not 0 <= self.leeway_s <= 300:
            raise ValueError(f"leeway_s is {self.leeway_s:g}; accepted: 0 to 300")
        if self.algorithm == "HS256" and len(self.key) < MIN_SECRET_BYTES:
            raise ValueError(f"key_file contains a short secret; accepted: {MIN_SECRET_BYTES} bytes or more")
        try:
            jwt.get_algorithm_by_name(self.algorithm).prepare_key(self.key)
        except (jwt.InvalidKeyError, TypeError, ValueError):
            raise ValueError(f"key_file contains no key for {self.algorithm}") from None

    def verify(self, token: str, budgets: Mapping[str, Budget]) -> Principal:
        """Return the holder of a valid token. Raises `Unauthenticated`, which does not show the token."""
        try:
            claims = jwt.decode(
                token,
                self.key,
                algorithms=[self.algorithm],
                issuer=self.issuer,
                audience=self.audience,
                leeway=self.leeway_s,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.InvalidTokenError as error:
            why = next((why for kind, why in _WHY if isinstance(error, kind)), "cannot be read")
            raise Unauthenticated(Reason.CREDENTIAL_INVALID, f"the token {why}") from None
        return self._principal(claims, budgets)

    def _principal(self, claims: Mapping[str, Any], budgets: Mapping[str, Budget]) -> Principal:
        tenant = claims.get(self.tenant_claim)
        if not isinstance(tenant, str) or not tenant:
            raise Unauthenticated(
                Reason.CREDENTIAL_INVALID, f"the token names no tenant in its claim {self.tenant_claim!r}"
            )
        try:
            classes = parse_classes(claims.get("classes"))
        except ValueError:
            raise Unauthenticated(
                Reason.CREDENTIAL_INVALID, "the token's claim 'classes' is not a list of class names"
            ) from None
        operator = claims.get("operator") is True
        return Principal(tenant, classes, operator, budgets.get(tenant, UNLIMITED))


def parse_classes(value: object) -> frozenset[SloClass]:
    """Return the SLO classes of a list of names, or all if it is missing; raises `ValueError`."""
    if value is None:
        return ALL_CLASSES
    names = {slo_class.name.lower(): slo_class for slo_class in SloClass}
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError(f"classes must be a list of {', '.join(names)}")
    unknown = set(value) - set(names)
    if unknown:
        raise ValueError(f"classes has {sorted(unknown)}; accepted: {', '.join(names)}")
    return frozenset(names[name] for name in value)
