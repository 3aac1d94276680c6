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
                "worker/streams/routers.py",
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
    Failure(
        "freed blocks",
        "Baton itself",
        "blocks were handed over that were being freed, with checksums of what others had written to them",
        (
            Guard(
                "worker/handoff/sides.py",
                "        self._parts.pop(handle, None)\n\n    def close",
                "\n    def close",
                "tests/worker/handoff/test_sender_side.py::test_no_part_is_offered_after_its_end",
            ),
            Guard(
                "worker/handoff/sides.py",
                '        self.handoffs.abort(handle, "cancelled")\n',
                "",
                "tests/worker/handoff/test_sender_side.py"
                "::test_blocks_that_are_reported_after_a_cancel_are_not_offered",
            ),
            Guard(
                "kvtransfer/sending/lending.py",
                '"the borrower has left")\n            self.on_over(handle)\n',
                '"the borrower has left")\n            self._release(handle)\n',
                "tests/worker/handoff/test_sender_side.py"
                "::test_a_borrower_that_leaves_gives_the_blocks_back_once",
            ),
        ),
    ),
    Failure(
        "double charges",
        "Baton itself",
        "a tenant paid several times for a request that was asked for again, or taken over by another router",
        (
            Guard(
                "runtime/state/lua/charge_tenant.lua",
                "if not over and not has_paid then\n",
                "if not over then\n",
                "tests/runtime/state/test_shares.py::test_a_request_pays_its_share_once",
            ),
            Guard(
                "runtime/state/lua/take_budget.lua",
                "  if known[4] == call then return {0, now, '0', '0', tonumber(known[5])} end",
                "  ",
                "tests/runtime/state/test_budgets.py::test_a_call_that_is_repeated_after_a_lost_answer_pays_once",
            ),
            Guard(
                "runtime/state/lua/take_budget.lua",
                "    requests, tokens = 0, math.max(0, tokens - paid)\n",
                "",
                "tests/runtime/state/test_budgets.py::test_a_request_that_another_router_takes_over_pays_once",
            ),
            Guard(
                "runtime/state/lua/return_budget.lua",
                "    tokens = call == ARGV[2] and tonumber(taken) or 0\n",
                "",
                "tests/runtime/state/test_budgets.py::test_a_refused_call_takes_nothing_from_one_that_is_served",
            ),
            Guard(
                "router/api/service.py",
                "paid = await self._admit(wait, prompt_bytes(caller), request)",
                "paid = await self._admit(wait, prompt_bytes(caller))",
                "tests/router/api/test_charging.py::test_a_request_that_is_sent_again_is_the_same_request",
            ),
            Guard(
                "runtime/state/lua/refund_tenant.lua",
                "  tokens = charged() or 0\n",
                "",
                "tests/runtime/state/test_shares.py::test_a_request_pays_its_share_once",
            ),
            Guard(
                "router/core/admit.py",
                "    if standing is not None and standing.is_over:\n        session.charged",
                "    if standing is None or standing.is_over:\n        session.charged",
                "tests/router/core/test_shedding.py::test_a_charge_without_an_answer_comes_back_too",
            ),
        ),
    ),
    Failure(
        "lost results",
        "Baton itself",
        "a batch was completed without the results that Redis had acknowledged and then lost",
        (
            Guard(
                "runtime/state/lua/durable/end_batch.lua",
                "if redis.call('BITCOUNT', KEYS[2]) < tonumber(",
                "if -1 > tonumber(",
                "tests/gateway/test_batch_records.py::test_lines_whose_results_redis_has_lost_are_run_again",
            ),
            Guard(
                "gateway/batches/executor.py",
                "        for lacking in range(number, batch.total):\n",
                "        for lacking in range(0):\n",
                "tests/gateway/test_batch_records.py::test_a_line_that_the_input_has_no_longer_fails_alone",
            ),
            Guard(
                "runtime/state/lua/durable/prelude.lua",
                "local now = read_clock(CLOCK, unpack(redis.call('HMGET', CLOCK, 'seen', 'jumped')))\n",
                "local now = unpack(redis.call('TIME')) * 1000\n",
                "tests/gateway/test_batch_records.py"
                "::test_a_jump_of_the_clock_neither_ends_nor_keeps_anything",
            ),
            Guard(
                "runtime/state/lua/durable/append_piece.lua",
                "if length < place then return -1 end\n",
                "",
                "tests/gateway/test_batch_records.py::test_an_upload_of_which_redis_has_lost_a_part_is_refused",
            ),
            Guard(
                "runtime/state/lua/durable/publish_file.lua",
                "if redis.call('LLEN', KEYS[5]) < tonumber(ARGV[3]) then return -1 end\n",
                "",
                "tests/gateway/test_batch_records.py::test_an_upload_of_which_redis_has_lost_a_part_is_refused",
            ),
        ),
    ),
)
