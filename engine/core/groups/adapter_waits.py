"""Groups that wait for their LoRA adapter, which is loaded while the others compute."""

from __future__ import annotations

from collections.abc import Container, Iterable

from engine.core.adapters import AdapterSlots
from engine.core.groups.queues import Queues
from engine.core.report import AdapterLoad
from engine.core.sequence import Goal, SequenceGroup


class AdapterWaits:
    """Lets groups into the queue once their adapter is there. What has to be loaded is returned."""

    def __init__(self, slots: AdapterSlots, queues: Queues) -> None:
        self._slots = slots
        self._queues = queues
        self._lacking: dict[int, SequenceGroup] = {}
        """The groups that wait, by handle. They have not run, so each is the only one of its handle."""

    def enter(self, group: SequenceGroup) -> list[AdapterLoad]:
        """Queue a group that lacks nothing but its adapter, if that; blocks that are only kept need none."""
        digest = group.spec.adapter
        if not digest or group.goal is Goal.CACHE or self._slots.take(group.handle, digest):
            self._queues.waiting.add(group)
            return []
        self._queues.lacking_adapter[group.key] = group
        self._lacking[group.handle] = group
        return self.advance()

    def end_load(self, digest: str) -> list[AdapterLoad]:
        """Queue the groups whose adapter is there now."""
        self._queue(self._slots.end_load(digest))
        return self.advance()

    def fail_load(self, digest: str) -> list[SequenceGroup]:
        """Return the groups whose adapter cannot be loaded; they have to end. Then `advance`."""
        return [self._lacking.pop(handle) for handle in self._slots.fail_load(digest)]

    def release(self, group: SequenceGroup) -> list[AdapterLoad]:
        """Note that a group computes nothing more: its adapter may make room."""
        if not group.spec.adapter:
            return []
        self._lacking.pop(group.handle, None)
        self._slots.release(group.handle)
        return self.advance()

    def advance(self) -> list[AdapterLoad]:
        """Begin the loads that there is room for."""
        changes = self._slots.advance()
        self._queue(changes.ready)
        return changes.loads

    def check_integrity(self, handles: Container[int]) -> None:
        """Assert that no sequence that is over has an adapter, or waits for one."""
        self._slots.check_integrity(handles)
        lacking = {group.key for group in self._lacking.values()}
        assert lacking == self._queues.lacking_adapter.keys(), "a group waits in one place only"

    def _queue(self, handles: Iterable[int]) -> None:
        for handle in handles:
            group = self._lacking.pop(handle)
            del self._queues.lacking_adapter[group.key]
            self._queues.waiting.add(group)
