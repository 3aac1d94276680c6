"""Guards whose lack a simulated run shows: each of these runs broke a promise before its guard was there."""

from __future__ import annotations

from tests.mutations.guard import Failure, Guard

_FOUND = "tests/dst/test_found.py::test_a_run_that_broke_a_promise_keeps_it"

SIMULATED = (
    Failure(
        "runs of the simulation",
        "Baton itself",
        "one or two faults at the right moment broke a promise",
        (
            Guard(
                "router/core/recover.py",
                " or _lacks_a_report(group)):\n",
                "):\n",
                f"{_FOUND}[last-report-lost]",
            ),
            Guard(
                "router/core/recover.py",
                "    group.failed_handoffs += (Handoff(group.prefill_key, group.decode_key),)\n",
                "",
                f"{_FOUND}[unreachable-prefill-worker]",
            ),
            Guard(
                "router/core/core.py",
                "                finish.no_worker_came(state, group.session)\n",
                "                finish.cut_off(state, group.session, finish.FinishReason.FAILED)\n",
                f"{_FOUND}[no-decode-worker]",
            ),
            Guard(
                "router/core/admit.py",
                "session.number == 0 and len(state.awaiting)",
                "len(state.awaiting)",
                f"{_FOUND}[no-place-for-who-resumes]",
            ),
            Guard(
                "router/core/outage.py",
                "    if event.worker_key:\n"
                "        state.to_release[ReleaseCredit(event.key, event.worker_key)] = None\n"
                "    for worker_key in event.decode_keys:\n"
                "        state.to_release[ReleaseLease(event.key, worker_key)] = None\n",
                "",
                f"{_FOUND}[settled-and-not-heard]",
            ),
            Guard(
                "router/core/dispatch.py",
                '    return f"{key}~{incarnation}.{next(state.names)}" if incarnation else key\n',
                "    return key\n",
                f"{_FOUND}[leased-twice]",
            ),
            Guard(
                "worker/streams/routers.py",
                "router_handle, fence, choices, session)\n",
                "router_handle, fence, (fence.choice,), session)\n",
                f"{_FOUND}[several-choices]",
            ),
            Guard(
                "router/core/core.py",
                "                outage.on_holds_lost(state, event)\n",
                "                pass\n",
                f"{_FOUND}[holds-run-out-unnoticed]",
            ),
            Guard(
                "router/core/recover.py",
                "    for listener in session.listeners if only is None else (only,):\n",
                "    for listener in [key for key, call in session.listeners.items() if call.grace_s > 0]:\n",
                f"{_FOUND}[superseded-after-taking-back]",
            ),
            Guard(
                "router/core/model/state.py",
                'f"{self.router_id}~{self.router_incarnation}" if',
                "self.router_id if",
                f"{_FOUND}[places-of-an-earlier-process]",
            ),
            Guard(
                "router/core/model/fleet.py",
                "for worker in self.workers.values()), self.block_size)\n",
                "for worker in self.workers.values()), 1)\n",
                f"{_FOUND}[measured-without-workers]",
            ),
        ),
    ),
)
