"""Credentials that the fleet has accepted lately: large bodies are read from their callers alone.

The gateway knows no keys. It asks a router, once a minute for a key. A router checks again what is let in.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

from baton.errors import NotAllowed
from gateway.fleet import FleetClient

PROVEN_S = 60.0
"""How long a router's answer about a key is good for."""
REFUSED_S = 5.0
"""How long it is known that the fleet serves nobody without a credential."""
MAX_KEYS = 4096


class Keys:
    """Asks the fleet about the keys of HTTP callers, and remembers the answers for a while."""

    def __init__(self, fleet: FleetClient) -> None:
        self._fleet = fleet
        self._proven: OrderedDict[str, float] = OrderedDict()
        """Until when a key is taken as proven, by its caller's name."""
        self._refused: tuple[float, NotAllowed] | None = None

    @property
    def are_needed(self) -> bool:
        """Return whether the fleet may ask for a key at all."""
        return self._fleet.sends_keys

    def is_proven(self, key: str) -> bool:
        return self._proven.get(caller_of(key), 0.0) > asyncio.get_running_loop().time()

    async def prove(self, key: str) -> None:
        """Return if the fleet accepts this caller key, which may be empty. Raises `BatonError`.

        The caller's key has to be in `caller_key`.
        """
        now = asyncio.get_running_loop().time
        if self.is_proven(key):
            return
        if not key and self._refused is not None and self._refused[0] > now():
            raise self._refused[1]
        try:
            await self._fleet.tenant()
        except NotAllowed as error:
            if not key:
                self._refused = (now() + REFUSED_S, error)
            raise
        self._proven[caller_of(key)] = now() + PROVEN_S
        self._proven.move_to_end(caller_of(key))
        if len(self._proven) > MAX_KEYS:
            self._proven.popitem(last=False)


def caller_of(key: str) -> str:
    """Return a name for the caller with this key, which does not contain the key."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
