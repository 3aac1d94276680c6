"""Guards against pairs of faults that the recovery of attempts, of streams and of handoffs must survive."""

from __future__ import annotations

from tests.mutations.guard import Failure, Guard

_GOING_ROUND = "tests/router/core/session/test_going_round.py"

PAIRS_RECOVERY = (
    Failure(
        "unreachable source",
        "this one",
        "all attempts of a request failed between the same two workers, although others could serve it",
        (
            Guard(
                "router/core/session/recover.py",
                "    group.failed_handoffs += (Handoff(group.prefill_key, worker_key),)\n",
                "",
                f"{_GOING_ROUND}::test_whatever_is_cut_every_request_is_served",
            ),
            Guard(
                "router/core/queue/grants.py",
                "best = choose_conditional(without_failed(paths) if has_failed else paths)",
                "best = choose_conditional(paths)",
                f"{_GOING_ROUND}::test_a_decode_worker_computes_alone_what_it_cannot_fetch",
            ),
            Guard(
                "router/core/queue/ways.py",
                "        found += tuple(worker for worker in fleet.decoding if worker.has(adapter))\n",
                "        pass\n",
                f"{_GOING_ROUND}::test_a_decode_worker_computes_alone_what_it_cannot_fetch",
            ),
            Guard(
                "router/core/queue/grants.py",
                "worker is None or worker.draining or goes_round(state, group, worker)",
                "worker is None or worker.draining",
                f"{_GOING_ROUND}::test_a_grant_of_a_worker_that_failed_is_given_back",
            ),
            Guard(
                "scheduling/placement.py",
                "return -float(candidate.avoided + candidate.failed_receipts)",
                "return -float(candidate.avoided)",
                f"{_GOING_ROUND}::test_the_next_attempt_has_another_source_and_another_target",
            ),
        ),
    ),
)
