"""The table of guards is about the code that there is."""

from __future__ import annotations

import re

import pytest

from tests.mutations.guard import Guard
from tests.mutations.table import FAILURES
from tools.house.source_tree import ROOT

GUARDS = [guard for failure in FAILURES for guard in failure.guards]


def test_every_failure_has_its_own_name_and_a_guard() -> None:
    assert len({failure.name for failure in FAILURES}) == len(FAILURES)
    assert all(failure.guards for failure in FAILURES)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.test.rpartition("::")[2])
def test_the_guard_stands_once_in_its_file_and_the_test_in_its(guard: Guard) -> None:
    without = guard.taken_out(ROOT)
    if guard.path.endswith(".py"):
        compile(without, guard.path, "exec")
    path, _, test = guard.test.partition("[")[0].partition("::")
    assert re.search(rf"def {test}\(", (ROOT / path).read_text(encoding="utf-8"))


def test_a_guard_that_is_not_there_is_never_taken_for_one_that_is_out() -> None:
    with pytest.raises(ValueError, match=r"^README\.md has 0 of 'no such guard'; accepted: 1$"):
        Guard("README.md", "no such guard", "", "").taken_out(ROOT)
