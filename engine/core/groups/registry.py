"""The groups of a worker by handle, how they end, and the report of what happened to them."""

from __future__ import annotations

from collections.abc import Iterator

from engine.core.batch import Batch
from engine.core.groups.adapter_waits import AdapterWaits
from engine.core.groups.queues import Queues
from engine.core.memory.block_tables import BlockTables
from engine.core.memory.forecast import WITHOUT_BLOCKS, MemoryForecast
from engine.core.memory.preempter import Preempter
from engine.core.memory.room import Room
from engine.core.report import Failure, Prefilled, StepReport
from engine.core.sequence import Goal, Phase, SequenceGroup
from scheduling.request import FailureReason


class GroupRegistry:
    """Every group that has not ended. Each one ends here, whatever it waits for or has."""

    def __init__(
        self,
        tables: BlockTables,
        batch: Batch,
        queues: Queues,
        forecast: MemoryForecast,
        preempter: Preempter,
        room: Room,
        adapter_waits: AdapterWaits,
    ) -> None:
        self._tables = tables
        self._batch = batch
        self._queues = queues
        self._forecast = forecast
        self._preempter = preempter
        self._room = room
        self._adapter_waits = adapter_waits
        self._pieces: dict[int, list[SequenceGroup]] = {}
        """By handle. All choices of a handle are one group, unless a preemption broke it into pieces."""
        self.report = StepReport()
        """Events since the last report; replaced for every report."""

    # Which there are

    def __contains__(self, handle: object) -> bool:
        return handle in self._pieces

    def add(self, group: SequenceGroup) -> None:
        """Enter the one group of a new handle."""
        self._pieces[group.handle] = [group]

    def pieces(self, handle: int) -> list[SequenceGroup]:
        """Return the groups of a handle; none if it has ended."""
        return list(self._pieces.get(handle, ()))

    def break_up(self, group: SequenceGroup, pieces: list[SequenceGroup]) -> None:
        """Replace a group by the pieces that a preemption broke it into."""
        siblings = self._pieces[group.handle]
        siblings.remove(group)
        siblings.extend(pieces)

    def undivided(self, handle: int) -> SequenceGroup | None:
        """Return the one group of a handle that has not run yet."""
        pieces = self._pieces.get(handle)
        return None if pieces is None else pieces[0]

    def all(self) -> list[SequenceGroup]:
        """Return every group."""
        return [group for pieces in self._pieces.values() for group in pieces]

    def holders(self) -> Iterator[SequenceGroup]:
        """Yield the groups that have blocks."""
        for pieces in self._pieces.values():
            for group in pieces:
                if group.phase not in WITHOUT_BLOCKS:
                    yield group

    # What is told of them

    def take_report(self) -> StepReport:
        """Return what happened since the last report."""
        report, self.report = self.report, StepReport()
        return report

    def publish_blocks(self, group: SequenceGroup) -> None:
        """Share the blocks filled since the last time and, if they are to be handed over, report them."""
        if group.goal is not Goal.HAND_OVER:
            self._tables.register_filled(group)
        elif (filled := self._tables.publish_filled(group)) is not None:
            self.report.filled.append(filled)

    def report_prefilled(self, group: SequenceGroup) -> None:
        self.report.prefilled.append(Prefilled(group.handle, group.num_cached_tokens))

    # How they end

    def refuse(self, failure: Failure) -> None:
        """Report a handle that has no group."""
        self.report.failures.append(failure)
        self.report.freed.append(failure.handle)

    def fail(
        self, group: SequenceGroup, reason: FailureReason, message: str, *, is_wrong: bool = False
    ) -> None:
        """End a sequence that cannot go on, once; `is_wrong` KV must not be found in the cache again."""
        pieces = self.pieces(group.handle)
        if group.phase is Phase.ENDED or not pieces:
            return
        tables = [piece.block_table for piece in pieces]
        tables += [choice.block_table for piece in pieces for choice in piece.choices]
        self.report.failures.append(Failure(group.handle, reason, message))
        for piece in pieces:
            self.end(piece)
        if is_wrong:
            self._tables.forget(tables)

    def end(self, group: SequenceGroup) -> None:
        """Return everything the group has, from whatever phase; the handle is free with its last piece."""
        self._queues.remove(group)
        for choice in group.choices:
            if choice.row >= 0:
                self._batch.leave(choice)
            self._tables.return_choice(choice)
        self._tables.return_context(group)
        self._preempter.forget(group)
        self._forecast.remove(group)
        self._room.note_return()
        group.phase = Phase.ENDED
        pieces = self._pieces[group.handle]
        pieces.remove(group)
        if not pieces:
            del self._pieces[group.handle]
            self.report.freed.append(group.handle)
            self.report.adapter_loads += self._adapter_waits.release(group)

    def cancel(self, handle: int) -> None:
        """End the groups of a handle; one that a copy still writes to, once the copy is over."""
        for group in self.pieces(handle):
            if group.phase in (Phase.RECEIVING, Phase.READING, Phase.ABANDONED):
                group.phase = Phase.ABANDONED
                self._queues.receiving.pop(group.key, None)
                self._queues.reading.pop(group.key, None)
            else:
                self.end(group)

    def release(self, handle: int) -> None:
        """End a group whose handoff is over."""
        group = self.undivided(handle)
        if group is not None and group.goal is Goal.HAND_OVER:
            self.cancel(handle)  # its handoff may be given up while a read still writes to its blocks

    def hand_back(self) -> None:
        """End the groups of all handles that have not begun."""
        for pieces in list(self._pieces.values()):
            if not any(group.has_begun for group in pieces):
                self.fail(pieces[0], FailureReason.DRAINING, "this worker is draining")
