"""Guards against two faults at once, or a late one, in what workers, budgets and batches keep."""

from __future__ import annotations

from tests.mutations.guard import Failure, Guard

PAIRS_WORKERS = (
    Failure(
        "divided choices",
        "Baton itself",
        "two routers that grouped the choices of a request differently had one of them decoded twice",
        (
            Guard(
                "worker/streams/hub.py",
                "self._guard.admit(fence, choices, begun_s)",
                "self._guard.admit(fence, (fence.choice,), begun_s)",
                "tests/worker/streams/test_hub.py::test_choices_that_another_router_groups_differently_run_once",
            ),
            Guard(
                "worker/streams/sequences.py",
                "            for choice in choices\n            for running",
                "            for choice in (fence.choice,)\n            for running",
                "tests/worker/streams/test_hub.py::test_choices_that_another_router_groups_differently_run_once",
            ),
            Guard(
                "kvtransfer/fence.py",
                "        for key in choice_keys:\n            seen =",
                "        for key in choice_keys[:1]:\n            seen =",
                "tests/kvtransfer/test_fence.py::test_attempts_compete_by_every_choice_they_cover",
            ),
        ),
    ),
)
