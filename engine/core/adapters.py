"""Which LoRA adapter is in which slot of the model, and which of them has to go when another one is needed.

A sequence runs only while its adapter is in a slot. An adapter that is not there is loaded into a free slot,
or in place of the least recently used adapter that no sequence uses. While sequences use all of them, the
adapters that are asked for wait in order, and the adapter whose latest sequence came first yields: newcomers
for it wait behind the others. So an adapter waits no longer than the sequences that run when its turn comes.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from engine.core.report import AdapterLoad


@dataclass(slots=True)
class SlotChanges:
    """The loads and starts that follow from a change of slots."""

    loads: list[AdapterLoad] = field(default_factory=list)
    """Loads that begin now."""
    ready: list[int] = field(default_factory=list)
    """Handles of sequences that wait for their adapter no more."""


class AdapterSlots:
    """The slots of one model; `loaded` are the adapters that are there at the start, by digest.

    Those in `loadable` can be loaded; it is only asked. No operation costs more with more adapters or
    sequences.
    """

    def __init__(
        self,
        num_slots: int = 0,
        loaded: Mapping[str, int] | None = None,
        loadable: Container[str] = (),
    ) -> None:
        self.num_slots = num_slots
        self._loadable = loadable
        self.slot_of: dict[str, int] = dict(loaded or {})
        """By digest. The adapters of sequences that run are always here."""
        taken = set(self.slot_of.values())
        self._free = [slot for slot in reversed(range(num_slots)) if slot not in taken]
        self._running: dict[str, set[int]] = {digest: set() for digest in self.slot_of}
        """The handles that use each loaded adapter; that whose latest sequence came first stands first."""
        self._unused: dict[str, None] = dict.fromkeys(self.slot_of)
        """An ordered set: loaded adapters that no sequence uses, least recently used first."""
        self._waiting: dict[str, dict[int, None]] = {}
        """The handles that wait for each adapter, in their order."""
        self._wanted: dict[str, None] = {}
        """An ordered set: adapters that are waited for and are not being loaded."""
        self._loading: dict[str, int] = {}
        """The slot that each of these is being loaded into."""
        self._yielding: str | None = None
        self._digest_of: dict[int, str] = {}
        """The adapter of each handle that runs or waits."""

    def __contains__(self, digest: object) -> bool:
        """Return True if sequences with this adapter can run, now or once it is loaded."""
        return digest in self.slot_of or digest in self._loadable

    def take(self, handle: int, digest: str) -> bool:
        """Note that a sequence is to use an adapter; return True if it may run now.

        Otherwise it waits: `advance` begins loads, and it or `end_load` names the handle once it may run.
        """
        self._digest_of[handle] = digest
        if digest in self.slot_of and digest != self._yielding:
            self._use(digest, [handle])
            return True
        self._waiting.setdefault(digest, {})[handle] = None
        if digest not in self._loading:
            self._wanted.setdefault(digest)
        return False

    def release(self, handle: int) -> None:
        """Note that a sequence is over."""
        digest = self._digest_of.pop(handle, None)
        if digest is None:
            return
        waiting = self._waiting.get(digest)
        if waiting is not None and handle in waiting:
            del waiting[handle]
            if not waiting and digest in self._wanted:
                del self._waiting[digest], self._wanted[digest]
            return
        users = self._running[digest]
        users.discard(handle)
        if not users:
            self._unused[digest] = None

    def advance(self) -> SlotChanges:
        """Begin the loads that there are slots for, and let sequences run whose adapters need not yield."""
        changes = SlotChanges()
        while self._wanted:
            digest = next(iter(self._wanted))
            if digest in self.slot_of:
                del self._wanted[digest]
                changes.ready += self._let_run(digest)
                continue
            load = self._begin_load(digest)
            if load is None:
                if self._yielding not in self.slot_of:
                    self._yielding = next(iter(self._running), None)
                return changes
            changes.loads.append(load)
        self._yielding = None
        return changes

    def end_load(self, digest: str) -> list[int]:
        """Note that an adapter is in its slot; return the handles that may run now."""
        self.slot_of[digest] = self._loading.pop(digest)
        self._running[digest] = set()
        self._unused[digest] = None
        return self._let_run(digest)

    def fail_load(self, digest: str) -> list[int]:
        """Note that an adapter cannot be loaded; return the handles that waited for it, which have to end."""
        self._free.append(self._loading.pop(digest))
        handles = list(self._waiting.pop(digest))
        for handle in handles:
            del self._digest_of[handle]
        return handles

    def check_integrity(self, handles: Container[int]) -> None:
        """Assert that each slot has one owner, and that no sequence that is over has an adapter."""
        owned = [*self.slot_of.values(), *self._loading.values(), *self._free]
        assert len(owned) == len(set(owned)), "a slot has two owners"
        assert all(handle in handles for handle in self._digest_of), "a sequence that is over has an adapter"
        assert self._running.keys() == self.slot_of.keys()
        assert self._unused.keys() == {digest for digest, users in self._running.items() if not users}
        assert self._wanted.keys() | self._loading.keys() == self._waiting.keys()

    def _begin_load(self, digest: str) -> AdapterLoad | None:
        """Give an adapter a slot; return None if there is none."""
        evicted = None
        if not self._free:
            evicted = next(iter(self._unused), None)
            if evicted is None:
                return None
            del self._unused[evicted], self._running[evicted]
            self._free.append(self.slot_of.pop(evicted))
        del self._wanted[digest]
        slot = self._loading[digest] = self._free.pop()
        return AdapterLoad(digest, slot, evicted)

    def _let_run(self, digest: str) -> list[int]:
        handles = list(self._waiting.pop(digest))
        self._use(digest, handles)
        return handles

    def _use(self, digest: str, handles: list[int]) -> None:
        if not handles:
            return
        users = self._running[digest] = self._running.pop(digest)
        users.update(handles)
        self._unused.pop(digest, None)
