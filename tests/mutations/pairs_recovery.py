"""Guards against pairs of faults that the recovery of attempts, of streams and of handoffs must survive."""

from __future__ import annotations

from tests.mutations.guard import Failure, Guard

_GOING_ROUND = "tests/router/core/test_going_round.py"

PAIRS_RECOVERY = (
    Failure(
        "unreachable source",
        "this one",
        "all attempts of a request failed between the same two workers, although others could serve it",
        (
            Guard(
                "router/core/recover.py",
                "    group.failed_handoffs += (Handoff(group.prefill_key, group.decode_key),)\n",
                "",
                f"{_GOING_ROUND}::test_whatever_is_cut_every_request_is_served",
            ),
            Guard(
                "router/core/grant.py",
                "best = choose_conditional(without_failed(paths) if has_failed else paths)",
                "best = choose_conditional(paths)",
                f"{_GOING_ROUND}::test_a_decode_worker_computes_alone_what_it_cannot_fetch",
            ),
            Guard(
                "router/core/grant.py",
                "        found += tuple(worker for worker in fleet.decoding if worker.has(adapter))\n",
                "        pass\n",
                f"{_GOING_ROUND}::test_a_decode_worker_computes_alone_what_it_cannot_fetch",
            ),
            Guard(
                "router/core/grant.py",
                "worker is None or worker.draining or goes_round(state, group, worker)",
                "worker is None or worker.draining",
                f"{_GOING_ROUND}::test_a_grant_of_a_worker_that_failed_is_given_back",
            ),
            Guard(
                "scheduling/placement.py",
                "return -(candidate.avoided + candidate.failed_receipts)",
                "return -candidate.avoided",
                f"{_GOING_ROUND}::test_the_next_attempt_has_another_source_and_another_target",
            ),
        ),
    ),
    Failure(
        "untold session",
        "this one",
        "a stream that had taken its request back ended as superseded when its router died",
        (
            Guard(
                "router/core/recover.py",
                "    for listener in session.listeners if only is None else (only,):\n",
                "    for listener in [key for key, call in session.listeners.items() if call.grace_s > 0]:\n",
                "tests/router/core/test_several_routers.py"
                "::test_a_request_that_was_taken_back_outlives_its_router",
            ),
        ),
    ),
    Failure(
        "router without workers",
        "this one",
        "a router that had lost its workers failed streams that another router could have served",
        (
            Guard(
                "router/core/core.py",
                "                finish.no_worker_came(state, group.session)\n",
                "                finish.cut_off(state, group.session, finish.FinishReason.FAILED)\n",
                "tests/router/core/test_awaiting.py::test_a_stream_without_workers_goes_on_at_another_router",
            ),
            Guard(
                "router/core/admit.py",
                "session.number == 0 and len(state.awaiting)",
                "len(state.awaiting)",
                "tests/router/core/test_awaiting.py::test_one_that_resumes_needs_no_free_place",
            ),
        ),
    ),
    Failure(
        "source that left",
        "this one",
        "a request waited for memory at its decode worker, and for KV that nobody would ever send",
        (
            Guard(
                "router/core/recover.py",
                "                state.without_source[group.key] = group\n",
                "",
                "tests/router/core/test_without_source.py::test_what_nobody_will_send_is_computed_anew_soon",
            ),
            Guard(
                "router/core/recover.py",
                "        if worker is None or group.decode_reported or group.source_left_at is None:\n",
                "        if worker is None or group.source_left_at is None:\n",
                "tests/router/core/test_without_source.py::test_a_decode_worker_that_has_the_kv_goes_on",
            ),
        ),
    ),
)
