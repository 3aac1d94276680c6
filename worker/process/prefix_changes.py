"""Blocks that came or went in one tier of a worker since the fleet was told."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class PrefixChanges:
    """The changes of one tier that the prefix directory does not have yet; may be called from any thread.

    Each hash is in at most one place, so the cost of `note` and `take` depends on how much they are given or
    return, not on how many blocks there are. A dict, unlike a set, pops its entries without a walk over its
    table.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._announced: dict[bytes, None] = {}
        """Here, and in the directory."""
        self._unannounced: list[dict[bytes, None]] = [{}]
        """Here, and not in the directory yet; new ones go to the last part. Never empty."""
        self._gone: dict[bytes, None] = {}
        """Not here any more, and still in the directory."""

    def note(self, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Take in what came and went; what is here already, or is not, is ignored."""
        with self._lock:
            for block_hash in added:
                self._add(block_hash)
            for block_hash in removed:
                self._remove(block_hash)

    def take(self, most: int) -> tuple[list[bytes], list[bytes]]:
        """Return (added, removed) since the last call, at most `most` of both together."""
        with self._lock:
            removed = [self._gone.popitem()[0] for _ in range(min(most, len(self._gone)))]
            added: list[bytes] = []
            while len(removed) + len(added) < most:
                part = self._unannounced[-1]
                if part:
                    num_added = min(most - len(removed) - len(added), len(part))
                    added += [part.popitem()[0] for _ in range(num_added)]
                elif len(self._unannounced) > 1:
                    self._unannounced.pop()
                else:
                    break
            self._announced.update(dict.fromkeys(added))
            return added, removed

    def announce_all_again(self) -> None:
        """Announce all blocks again: the directory may have lost everything.

        Costs the same for any number.
        """
        with self._lock:
            if self._announced:
                self._unannounced.insert(0, self._announced)
                self._announced = {}
            self._gone = {}

    def _add(self, block_hash: bytes) -> None:
        if block_hash in self._gone:
            del self._gone[block_hash]
            self._announced[block_hash] = None
        elif block_hash not in self._announced and not any(block_hash in part for part in self._unannounced):
            self._unannounced[-1][block_hash] = None

    def _remove(self, block_hash: bytes) -> None:
        if block_hash in self._announced:
            del self._announced[block_hash]
            self._gone[block_hash] = None
            return
        for part in self._unannounced:
            if block_hash in part:
                del part[block_hash]
                return
