"""Guards against two faults at once that let holds in Redis, or requests that wait for it, go wrong."""

from __future__ import annotations

from tests.mutations.guard import Failure, Guard

LATE_CALLS = "tests/router/core/test_late_calls.py"

PAIRS_HOLDS = (
    Failure(
        "a settle without an answer",
        "Baton itself",
        "a settle was executed and answered too late: its lease and credit were nobody's until they expired",
        (
            Guard(
                "router/core/outage.py",
                "    for worker_key in event.decode_keys:\n"
                "        state.to_release[ReleaseLease(event.key, worker_key)] = None\n",
                "",
                f"{LATE_CALLS}::test_a_settle_that_was_executed_and_failed_leaves_nothing_behind",
            ),
            Guard(
                "router/core/outage.py",
                "    if event.worker_key:\n"
                "        state.to_release[ReleaseCredit(event.key, event.worker_key)] = None\n",
                "",
                f"{LATE_CALLS}::test_a_settle_that_was_executed_and_failed_leaves_nothing_behind",
            ),
            Guard(
                "router/core/outage.py",
                "Dequeue(event.key, event.worker_key, event.decode_keys)",
                "Dequeue(event.key)",
                f"{LATE_CALLS}::test_a_settle_executed_between_two_dequeues_leaves_nothing_behind",
            ),
        ),
    ),
    Failure(
        "late releases",
        "Baton itself",
        "a release that was executed late took the lease of a later attempt, or of another router",
        (
            Guard(
                "router/core/dispatch.py",
                '    return f"{key}~{incarnation}.{next(state.names)}" if incarnation else key\n',
                "    return key\n",
                f"{LATE_CALLS}::test_a_release_executed_late_takes_nothing_from_a_later_attempt",
            ),
            Guard(
                "router/core/dispatch.py",
                "~{incarnation}.{next(state.names)}",
                "~{next(state.names)}",
                f"{LATE_CALLS}::test_what_one_router_releases_another_keeps",
            ),
            Guard(
                "router/core/dispatch.py",
                "    if group.phase is not Phase.NEW:\n        rename(state, group)\n",
                "",
                f"{LATE_CALLS}::test_what_a_grant_left_is_not_taken_from_the_next_one",
            ),
            Guard(
                "router/core/dispatch.py",
                "        rename(state, group)\n        enqueue(state, group)\n",
                "        enqueue(state, group)\n",
                f"{LATE_CALLS}::test_what_a_grant_left_is_not_taken_from_the_next_one",
            ),
        ),
    ),
    Failure(
        "holds that expire unnoticed",
        "Baton itself",
        "leases expired in two short standstills, and the router went on renewing what was not there",
        (
            Guard(
                "router/core/core.py",
                "                outage.on_holds_lost(state, event)\n",
                "                pass\n",
                f"{LATE_CALLS}::test_what_expired_while_nobody_renewed_it_is_entered_again",
            ),
            Guard(
                "runtime/state/lua/renew.lua",
                "      lost[#lost + 1] = key\n",
                "",
                "tests/runtime/state/test_settling.py::test_a_renewal_names_what_is_not_held_any_more",
            ),
        ),
    ),
    Failure(
        "a router that a new epoch does not know",
        "Baton itself",
        "Redis restarted while a router was away, and its blocks were granted to others",
        (
            Guard(
                "runtime/state/lua/enter.lua",
                "  for i = 7, #ARGV do\n",
                "  for i = 7, 0 do\n",
                "tests/runtime/state/test_epochs.py::test_nothing_is_granted_while_a_router_that_was_seen_is_away",
            ),
            Guard(
                "runtime/state/lua/enter.lua",
                "    redis.call('HDEL', KEYS[1], 'awaited:' .. ARGV[6])\n",
                "",
                "tests/runtime/state/test_epochs.py::test_once_all_routers_are_back_grants_go_on",
            ),
        ),
    ),
    Failure(
        "one name for every container",
        "Baton itself",
        "routers without a name were all router-1, and one received the other's grants",
        (
            Guard(
                "runtime/settings.py",
                '    return f"{kind}-{socket.gethostname()}-{number}"\n',
                '    return f"{kind}-1"\n',
                "tests/router/test_config.py::test_routers_that_are_given_no_name_have_names_of_their_own",
            ),
        ),
    ),
    Failure(
        "accepted, and never sent",
        "Baton itself",
        "requests that were accepted waited for Redis for as long as it was away",
        (
            Guard(
                "router/core/outage.py",
                "(since is not None and state.now - since >= PATIENCE_S)",
                "False",
                f"{LATE_CALLS}::test_what_was_accepted_waits_for_the_store_for_a_while_at_most",
            ),
        ),
    ),
)
