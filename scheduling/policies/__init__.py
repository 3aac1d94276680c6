"""The ways to serve, by name; each in a file of its own that names its paper."""

from __future__ import annotations

from scheduling.policies.chunked import CHUNKED
from scheduling.policies.policy import Policy
from scheduling.policies.slack import SLACK

_ALL = {policy.name: policy for policy in (CHUNKED, SLACK)}
NAMES = tuple(_ALL)
DEFAULT = SLACK.name


def by_name(name: str) -> Policy:
    """Raises ValueError for a name that is not one of `NAMES`."""
    if name not in _ALL:
        raise ValueError(f"policy is {name!r}; accepted: {', '.join(NAMES)}")
    return _ALL[name]
