"""The queue against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.groups.roster import WaitingQueue
from engine.core.sequence import Goal, SequenceGroup
from model_output.text.output import output_rules
from tests.engine.loop_driver import spec


def group(key: int, num_rows: int, receives: bool) -> SequenceGroup:
    one = spec(key, [1] * (key % 7 + 1), choices=tuple(range(num_rows)))
    rules = output_rules(one.stop, (), 1, 100)
    made = SequenceGroup(key, one, Goal.DECODE, rules, [], 0.0)
    made.receives = receives
    return made


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=20), st.integers(0, 3))
def test_first_come_is_next_and_only_receivers_pass_without_rows(
    arrivals: list[tuple[int, bool, bool]], room: int
) -> None:
    queue = WaitingQueue()
    waiting: list[SequenceGroup] = []
    for key, (num_rows, receives, leaves) in enumerate(arrivals):
        waiting.append(group(key, num_rows, receives))
        queue.add(waiting[-1])
        if leaves:
            queue.remove(waiting[0])
            queue.remove(waiting.pop(0))
        assert queue.num_rows == sum(request.num_rows for request in waiting)
        assert queue.num_tokens == sum(len(request.context) for request in waiting if not request.receives)
        able = [
            request
            for place, request in enumerate(waiting)
            if request.receives or (place == 0 and request.num_rows <= room)
        ]
        assert queue.next(lambda one: one.num_rows <= room) is (able[0] if able else None)
