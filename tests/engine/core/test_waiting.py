"""The queue against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.sequence import Goal, SequenceGroup
from engine.core.waiting import WaitingQueue
from output_text.output import output_rules
from tests.engine.loop_driver import spec


def group(key: int, num_rows: int, receives: bool) -> SequenceGroup:
    one = spec(key, [1] * (key % 7 + 1), choices=tuple(range(num_rows)))
    rules = output_rules(one.stop, (), 1, 100)
    made = SequenceGroup(key, one, Goal.DECODE, rules, [], 0.0)
    made.receives = receives
    return made


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=20), st.integers(0, 3))
def test_who_came_first_is_next_and_only_receivers_pass_for_want_of_rows(
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
        assert queue.num_rows == sum(one.num_rows for one in waiting)
        assert queue.num_tokens == sum(len(one.context) for one in waiting if not one.receives)
        able = [
            one for place, one in enumerate(waiting) if one.receives or (place == 0 and one.num_rows <= room)
        ]
        assert queue.next(lambda one: one.num_rows <= room) is (able[0] if able else None)
