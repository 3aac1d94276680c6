"""Request ids come again, soon and when they are forgotten."""

from __future__ import annotations

import random

from tests.chaos.ids import FORGOTTEN_S, UsedIds
from tests.chaos.streams import Course, Outcome, asks

ASK = asks(random.Random(1), 1)[0]


def test_ids_come_again_soon_and_when_forgotten() -> None:
    used = UsedIds(random.Random(1))
    for name, at in (("old", 0.0), ("running", 0.0), ("young", FORGOTTEN_S)):
        used.add(Course(ASK, name, outcome=Outcome.SAME), at)
    used.add(Course(ASK, "lost", outcome=Outcome.LOST), 0.0)
    drawn = [used.draw(FORGOTTEN_S + 1.0, ("running",)) for _ in range(200)]
    found = [(entry.course.request_id, entry.is_forgotten) for entry in drawn if entry is not None]
    assert sorted(found) == [("old", True), ("young", False)], "each was taken once"
