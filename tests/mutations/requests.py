"""Guards against failures in the life of a request: its KV, its place in the queue, its streams."""

from __future__ import annotations

from tests.mutations.guard import Failure, Guard

REQUESTS = (
    Failure(
        "garbage",
        "vllm#52234",
        "a failed KV receive was answered with garbage, or with the previous prompt's answer",
        (
            Guard(
                "kvtransfer/receiver_handoff.py",
                "        if found != copy.checksum:\n",
                "        if False:\n",
                "tests/kvtransfer/test_receiver_handoff.py"
                "::test_a_damaged_block_and_what_follows_it_are_never_used",
            ),
            Guard(
                "kvtransfer/receiver_handoff.py",
                "            if block_hash != self._hashes[index]:\n",
                "            if False:\n",
                "tests/kvtransfer/test_receiver_handoff.py::test_a_block_of_another_prompt_is_never_used",
            ),
            Guard(
                "engine/core/groups/incoming.py",
                "self._tables.accept(group, arrived.num_verified_blocks)",
                "self._tables.accept(group, len(group.block_table))",
                "tests/engine/core/test_step_loop_handoff.py"
                "::test_nothing_is_decoded_from_blocks_that_were_not_verified",
            ),
            Guard(
                "engine/core/groups/incoming.py",
                "            self._groups.fail(group, FailureReason.HANDOFF, message)\n",
                "            from scheduling.columns import TokenColumns\n\n"
                "            garbage = TokenColumns([handle], [0], [0], [1], [0])\n"
                "            self._arrive(KVArrived(handle, len(group.block_table), garbage), 0.0)\n",
                "tests/engine/core/test_step_loop_handoff.py::test_a_failed_receive_is_never_an_answer",
            ),
        ),
    ),
    Failure(
        "siblings",
        "vllm#56104",
        "the first copy that failed freed blocks while sibling copies still wrote into the next owner's",
        (
            Guard(
                "kvtransfer/threads.py",
                "        await _wait_for_end(future)\n",
                "",
                "tests/kvtransfer/test_siblings.py"
                "::test_the_first_failure_returns_no_block_while_a_sibling_writes",
            ),
            Guard(
                "engine/core/groups/groups.py",
                "            if group.phase in (Phase.RECEIVING, Phase.READING, Phase.ABANDONED):\n",
                "            if group.phase is Phase.ABANDONED:\n",
                "tests/engine/core/test_step_loop_handoff.py"
                "::test_blocks_that_a_copy_may_still_write_to_are_given_to_nobody",
            ),
        ),
    ),
    Failure(
        "aborted-prefill",
        "sglang#34208, #30233",
        "an aborted prefill left decode running on KV that was missing",
        (
            Guard(
                "router/core/recover.py",
                "are ignored there.\n    finish.detach(state, group, tell_workers=True)\n",
                "are ignored there.\n    finish.detach(state, group, tell_workers=False)\n",
                "tests/router/core/test_letting_go.py::test_no_decode_runs_on_kv_of_a_prefill_that_failed",
            ),
        ),
    ),
    Failure(
        "dead-prefill",
        "vllm#49238, sglang#12779",
        "a prefill worker that died or was restarted took healthy decode down with it",
        (
            Guard(
                "router/core/recover.py",
                "elif worker.draining or _was_handed_over(group, worker):",
                "elif worker.draining:",
                "tests/router/core/test_letting_go.py::test_a_dead_prefill_worker_takes_no_healthy_decode_along",
            ),
            Guard(
                "router/core/recover.py",
                "group.prefill_key = None  # should it come back under this key,",
                "pass  #",
                "tests/router/core/test_step_reports.py"
                "::test_a_returning_prefill_worker_disturbs_no_handed_over_group",
            ),
            Guard(
                "kvtransfer/receiving/receiver.py",
                "            if not isinstance(lost, PeerLostError):\n",
                "            if True:\n",
                "tests/kvtransfer/test_giving_up.py::test_a_sender_that_dies_after_its_commit_fails_no_receive",
            ),
        ),
    ),
    Failure(
        "growth",
        "sglang#30033",
        "nothing was admitted by how KV would grow, and one full rank froze the node",
        (
            Guard(
                "engine/core/memory/room.py",
                "or self._forecast.fits(chain(holders, [group]), group)):",
                "or True):",
                "tests/engine/core/memory/test_forecast.py"
                "::test_without_examples_nothing_starts_that_could_outgrow_the_pool",
            ),
            Guard(
                "scheduling/placement.py",
                "FILTERS: tuple[Filter, ...] = (is_open, has_blocks, has_seat)",
                "FILTERS: tuple[Filter, ...] = (is_open, has_seat)",
                "tests/scheduling/test_placement.py::test_a_full_or_leaving_worker_is_never_picked",
            ),
        ),
    ),
    Failure(
        "pinned-slot",
        "sglang#29017, aibrix#2289",
        "a failed prefill pinned a decode slot for 300 s",
        (
            Guard(
                "router/core/finish.py",
                "    release(state, group)\n    set_phase(state, group, Phase.ENDED)\n",
                "    set_phase(state, group, Phase.ENDED)\n",
                "tests/router/core/test_letting_go.py::test_a_failed_prefill_pins_no_decode_slot",
            ),
        ),
    ),
    Failure(
        "disconnect",
        "dynamo#13691, #14507",
        "a client that went before its first token did not stop the prefill; the next request waited 54.7 s",
        (
            Guard(
                "router/core/arrive.py",
                "    else:\n        _give_up(state, session)\n\n\n",
                "\n\n",
                "tests/router/core/test_letting_go.py::test_no_prefill_goes_on_for_a_client_that_left",
            ),
            Guard(
                "router/core/finish.py",
                "        leave_queue(state, group)\n    move = state.moves.pop(group.key, None)\n",
                "        pass\n    move = state.moves.pop(group.key, None)\n",
                "tests/router/core/test_letting_go.py::test_nothing_starts_for_a_client_that_went_while_it_waited",
            ),
        ),
    ),
    Failure(
        "taken over",
        "Baton itself",
        "a caller lost its stream to an earlier one that was gone: its router did not know of a resumption",
        (
            Guard(
                "router/core/recover.py",
                " or _take_back(state, session, failure):\n",
                ":\n",
                "tests/router/core/test_taking_back.py::test_a_later_call_takes_the_request_back",
            ),
            Guard(
                "router/core/recover.py",
                " or has_new_call",
                "",
                "tests/router/core/test_taking_back.py"
                "::test_a_call_is_not_judged_by_what_the_worker_said_before",
            ),
            Guard(
                "router/core/recover.py",
                " and (now - call.attached_at) * (1 + MAX_DRIFT) < age_s\n",
                "\n",
                "tests/router/core/test_taking_back.py::test_earlier_calls_end",
            ),
            Guard(
                "kvtransfer/fence.py",
                "and begun_s > newest.over_at",
                "and False",
                "tests/router/core/test_using_an_id_again.py::test_an_id_comes_again_after_it_was_resumed",
            ),
            Guard(
                "router/core/arrive.py",
                "has_caller = bool(known.listeners) and not known.ended",
                "has_caller = True",
                "tests/router/core/test_using_an_id_again.py::test_an_id_comes_again_after_it_was_resumed",
            ),
            Guard(
                "router/core/arrive.py",
                "session.number > request.session and not session.ended",
                "False",
                "tests/router/core/test_using_an_id_again.py::test_an_id_comes_again_after_it_was_resumed",
            ),
            Guard(
                "worker/streams/hub.py",
                "self._clock() - spec.session_age_seconds",
                "self._clock()",
                "tests/worker/streams/test_hub.py::test_a_refused_router_hears_the_age_of_the_later_session",
            ),
            Guard(
                "baton/stream.py",
                "max(progress.session, message.retrying.session)",
                "progress.session",
                "tests/baton/test_stream.py::test_a_break_is_resumed_after_the_session_that_the_router_named",
            ),
            Guard(
                "baton/stream.py",
                "rest_s = CRASH_REST_S if",
                "rest_s = 0.0 if",
                "tests/vectors/test_python.py"
                "::test_a_vector[a request that crashes every call is given up-alone]",
            ),
        ),
    ),
    Failure(
        "sigterm",
        "dynamo#13952",
        "SIGTERM truncated streams instead of draining or migrating them",
        (
            Guard(
                "worker/process/main.py",
                "await asyncio.wait(waited, timeout=self._config.service.drain_s, ",
                "await asyncio.wait(waited, timeout=0, ",
                "tests/worker/streams/test_relay.py::test_sigterm_cuts_no_running_sequence_short",
            ),
            Guard(
                "router/core/core.py",
                "            if worker.draining:\n                clear(state, worker)\n            elif",
                "            if",
                "tests/router/core/test_draining.py"
                "::test_the_next_attempt_starts_only_after_the_source_stopped",
            ),
        ),
    ),
    Failure(
        "lost-state",
        "dynamo#7930",
        "structured output could not migrate: the state of its grammar was lost",
        (
            Guard(
                "engine/core/sequence.py",
                "            choice.output.push(token_id)\n",
                "            pass\n",
                "tests/engine/core/test_step_loop_moving.py::test_no_state_of_a_choice_is_lost_when_it_moves",
            ),
        ),
    ),
    Failure(
        "unbounded-queue",
        "vllm#49445",
        "a queue without a bound",
        (
            Guard(
                "runtime/state/lua/enqueue.lua",
                "if not waiting and num_others >= tonumber(ARGV[7]) then return {-1, 0} end",
                "",
                "tests/runtime/state/test_queue.py::test_the_queue_never_grows_past_its_bound",
            ),
            Guard(
                "router/core/admit.py",
                "    turn_away(state, group.session, queue_full(state))\n",
                "    strand(state, group)\n",
                "tests/router/core/test_letting_go.py"
                "::test_a_full_queue_takes_nobody_in_and_says_when_to_come_back",
            ),
        ),
    ),
    Failure(
        "unheard drain",
        "Baton itself",
        "a worker went on that an operator had drained: the message was lost with its stream",
        (
            Guard(
                "router/core/core.py",
                "        if key in state.fleet.unheard_drains and not worker.draining:\n",
                "        if False:\n",
                "tests/router/core/test_draining.py"
                "::test_a_worker_that_may_not_have_heard_it_is_told_again_to_drain",
            ),
        ),
    ),
    Failure(
        "abandoned",
        "Baton itself",
        "places of a router that was killed stayed in an idle queue, and newcomers were refused for them",
        (
            Guard(
                "runtime/state/lua/queue_status.lua",
                "forget_abandoned()\n",
                "",
                "tests/runtime/state/test_clock.py"
                "::test_places_of_a_dead_router_are_forgotten_without_grants",
            ),
            Guard(
                "router/core/grant.py",
                "        if state.queue_stands:\n            _clear_queue(state)\n",
                "",
                "tests/router/core/test_shedding.py::test_a_newcomer_refused_for_what_waits_has_it_granted",
            ),
            Guard(
                "router/core/admit.py",
                "        if ahead.requests >= len(state.groups):",
                "        if False:",
                "tests/router/core/test_shedding.py::test_a_newcomer_refused_for_what_waits_has_it_granted",
            ),
        ),
    ),
    Failure(
        "priority",
        "vllm#40004",
        "a high priority waited behind a low one when all slots were taken",
        (
            Guard(
                "router/core/core.py",
                "        preempt_seat(state)\n",
                "",
                "tests/router/core/test_seats.py::test_no_high_class_is_late_behind_a_low_one_that_runs",
            ),
            Guard(
                "scheduling/admission/backlog.py",
                "    return int(slo.slo_class), due_in_ms(slo, waited_s)\n",
                "    return 0, due_in_ms(slo, waited_s)\n",
                "tests/scheduling/admission/test_ordering.py::test_by_due_time_no_class_goes_before_a_higher_one",
            ),
        ),
    ),
    Failure(
        "replicas",
        "llm-d-router#1593, #1892",
        "router replicas learned apart; failover promoted an empty standby",
        (
            Guard(
                "router/core/model/fleet.py",
                "self.num_seqs = max(self.load.running, self.decode_seqs)",
                "self.num_seqs = self.decode_seqs",
                "tests/router/core/test_letting_go.py::test_a_later_router_does_not_take_filling_blocks_for_empty",
            ),
            Guard(
                "worker/streams/service.py",
                "changed = None if cost is known else cost",
                "changed = None",
                "tests/worker/test_costs.py::test_no_router_is_left_with_old_costs",
            ),
        ),
    ),
    Failure(
        "used again",
        "Baton itself",
        "a request id that its router had forgotten failed for ever: workers remembered its attempts",
        (
            Guard(
                "router/core/dispatch.py",
                "        run=session.sid,\n",
                "",
                "tests/router/core/test_using_an_id_again.py"
                "::test_an_id_is_served_in_one_attempt_however_often_it_comes",
            ),
            Guard(
                "kvtransfer/fence.py",
                "    return (fence.router_id, fence.router_incarnation)\n",
                '    return (fence.router_id, "")\n',
                "tests/router/core/test_using_an_id_again.py"
                "::test_a_router_started_again_serves_the_same_ids",
            ),
            Guard(
                "router/core/recover.py",
                'about the request."""\n    group.excused_failures += 1\n',
                'about the request."""\n',
                "tests/router/core/test_recovery.py"
                "::test_a_worker_that_refuses_a_fence_says_nothing_about_the_request",
            ),
        ),
    ),
    Failure(
        "nobody's",
        "Baton itself",
        "a request hung for ever: its prefill worker left, the last report was lost, and nobody held it",
        (
            Guard(
                "router/core/recover.py",
                " or _lacks_a_report(group)):\n",
                "):\n",
                "tests/router/core/test_letting_go.py"
                "::test_a_last_report_that_a_leaving_worker_loses_ends_no_request",
            ),
            Guard(
                "worker/streams/hub.py",
                "                if not freed.is_over:\n",
                "                if False:\n",
                "tests/worker/streams/test_hub.py::test_every_sequence_ends_with_a_word_to_its_router",
            ),
        ),
    ),
    Failure(
        "slower-apart",
        "vllm#23144, #41834",
        "disaggregation was slower than aggregation, and nothing said so",
        (
            Guard(
                "router/core/model/fleet.py",
                "return (PREFILL,) if self.placement is Placement.DISAGGREGATED else (PREFILL, DECODE)",
                "return (PREFILL,)",
                "tests/router/core/test_paths.py"
                "::test_nothing_waits_for_prefill_beside_an_idle_decode_worker",
            ),
            Guard(
                "decode_worker/receiver_side.py",
                "        metrics.handoff_exposed.observe(result.exposed_s)\n",
                "",
                "tests/decode_worker/test_receiver_side.py"
                "::test_what_a_handoff_keeps_a_client_waiting_for_is_never_hidden",
            ),
        ),
    ),
    Failure(
        "grammar",
        "dynamo#7930",
        "a sequence that moved to another worker lost the state of its grammar",
        (
            Guard(
                "model_output/grammar/grammar.py",
                "        new = list(output[self._num_tokens :])\n",
                "        new = list(output[-1:])\n",
                "tests/engine/core/test_step_loop_moving.py::test_no_state_of_a_choice_is_lost_when_it_moves",
            ),
            Guard(
                "model_output/grammar/grammar.py",
                "        if self.matcher.is_error():\n",
                "        if False:\n",
                "tests/model_output/grammar/test_grammar.py"
                "::test_a_grammar_that_becomes_too_complex_does_not_end_its_output",
            ),
        ),
    ),
    Failure(
        "simulator",
        "vidur#60",
        "the simulator was off by 700 % from the engine it models",
        (
            Guard(
                "sim/step_times.py",
                "return now + (self._cost.predict(shape) * ratio",
                "return now + (8 * self._cost.predict(shape) * ratio",
                "tests/sim/workers/test_against_engine.py::test_no_simulated_step_is_other_than_the_engines",
            ),
            Guard(
                "engine/core/turns/worker_core.py",
                "StepShape.of(num_decodes, self.batch.context_of(rows), parts)",
                "StepShape.of(num_decodes, 0, parts)",
                "tests/sim/workers/test_against_engine.py::test_no_simulated_step_is_other_than_the_engines",
            ),
        ),
    ),
)
