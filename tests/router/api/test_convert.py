"""Nothing is lost between the contract and the router's words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.v1 import generation_pb2, inference_pb2
from baton.worker.v1 import attempt_pb2, worker_pb2
from router.api.convert import content_digest, finished_to_pb, request_from_pb
from router.core.model.actions import Marks, Outcome, Promise, SendReceive
from router.core.model.events import WorkerLoad
from router.links.convert_worker import (
    command_to_pb,
    cost_from_pb,
    load_from_pb,
    load_to_pb,
    sampling_to_pb,
    spec_to_pb,
)
from runtime.rpc.convert import columns_from_pb, cost_to_pb, to_pb
from scheduling.cost_model import Band, CostModel
from scheduling.request import Fence, FinishReason, Path, SamplingParams, SequenceSpec, SloClass, StopRules

counts = st.integers(0, 2**32 - 1)


@given(st.builds(WorkerLoad, *[st.integers(0, 2**31)] * 7, draining=st.booleans()))
def test_load_survives_the_round_trip(load: WorkerLoad) -> None:
    assert load_from_pb(load_to_pb(load)) == load


def test_cost_survives_the_round_trip() -> None:
    cost = CostModel((1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 7.0, 0.5, 1.0, 2.0)
    assert cost_from_pb(cost_to_pb(cost)) == cost
    launched = replace(cost, chunk_floor_s=0.016, chunk_band=Band(0.7, 1.0, 1.4))
    assert cost_from_pb(cost_to_pb(launched)) == launched


def test_worker_that_measured_nothing_is_taken_to_cost_nothing() -> None:
    assert cost_from_pb(worker_pb2.CostModel()) == CostModel((0.0,) * 6, 0.0)


def test_spec_says_every_field() -> None:
    sampling = SamplingParams(
        0.5, 40, 0.9, 0.1, 1.1, 0.2, 0.3, ((7, -1.5),), 99, 2, 3, 4, (5, 6), ((7,), (8, 9))
    )
    stop = StopRules(10, 2, ("a", "b"), (4,), ignore_eos=True, include_stop=True, skip_special_tokens=False)
    spec = SequenceSpec(1, Fence("t", "r", 2, 3, 4, "s", "d"), (1, 2), (3,), (4,), sampling, stop, b"salt")
    message = spec_to_pb(spec)
    assert (message.handle, list(message.prompt_token_ids), list(message.output_token_ids)) == (
        1,
        [1, 2],
        [3],
    )
    assert (message.fence.session, message.fence.attempt, message.fence.target_incarnation) == (2, 3, "d")
    said = {field.name for field, _ in message.sampling.ListFields()}
    # Workers have no tokenizer to ask for a word's tokens.
    assert said | {"bad_words"} == {field.name for field in generation_pb2.SamplingParams.DESCRIPTOR.fields}
    assert [list(bad_word.token_ids) for bad_word in message.bad_words] == [[7], [8, 9]]
    assert dict(message.sampling.logit_bias) == {7: -1.5}
    assert message.stop == to_pb(generation_pb2.StopRules, stop)
    assert {field.name for field, _ in message.stop.ListFields()} == {
        field.name for field in generation_pb2.StopRules.DESCRIPTOR.fields
    }
    assert message.cache_salt == b"salt"
    receive = command_to_pb(SendReceive("d:1", spec, "host:1")).receive
    assert (receive.sequence, receive.source_address) == (message, "host:1")


def test_unwanted_logprobs_stay_unset() -> None:
    assert not sampling_to_pb(SamplingParams()).HasField("logprobs")
    assert sampling_to_pb(SamplingParams(logprobs=0)).HasField("logprobs")


def test_columns_are_taken_over_as_they_are() -> None:
    reasons = ["FINISH_REASON_UNSPECIFIED", "FINISH_REASON_LENGTH"]
    message = attempt_pb2.TokenColumns(
        handles=[1, 2], choices=[0, 1], indexes=[5, 6], token_ids=[7, 8], finish_reasons=reasons,
        text_lengths=[1, 0], text_utf8=b"x", logprob_rows=[1], logprobs=[-0.5], top_counts=[2],
        top_token_ids=[8, 9], top_logprobs=[-0.5, -1.0], stop_rows=[1], stop_places=[3],
    )  # fmt: skip
    columns = columns_from_pb(message)
    for field in attempt_pb2.TokenColumns.DESCRIPTOR.fields:
        taken = getattr(columns, field.name)
        assert taken == (b"x" if field.name == "text_utf8" else list(getattr(message, field.name)))


def test_what_was_not_said_stays_unsaid() -> None:
    raw = request_from_pb(inference_pb2.GenerateRequest(text="hello"))
    assert (raw.text, raw.chat, raw.token_ids) == ("hello", None, None)
    assert (raw.temperature, raw.n, raw.seed, raw.max_tokens, raw.ttft_ms, raw.deadline_ms) == (None,) * 6
    said = request_from_pb(
        inference_pb2.GenerateRequest(
            tokens=inference_pb2.TokenInput(token_ids=[1]),
            sampling=generation_pb2.SamplingParams(temperature=0, n=0, seed=0),
            stop=generation_pb2.StopRules(max_tokens=0),
            slo=generation_pb2.Slo(deadline_ms=0),
        )
    )
    assert (said.temperature, said.n, said.seed, said.max_tokens, said.deadline_ms) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"request_id": "other"}, True),
        ({"resume_grace_ms": 5}, True),
        ({"user": "someone"}, True),
        ({"program": generation_pb2.Program(id="p", deadline_ms=5)}, True),
        ({"sampling": generation_pb2.SamplingParams(seed=4)}, True),
        ({"sampling": generation_pb2.SamplingParams(temperature=0.5)}, False),
        ({"text": "other"}, False),
        ({"slo": generation_pb2.Slo(ttft_ms=5)}, False),
    ],
)
def test_digest_is_of_the_content_alone(change: dict[str, Any], same: bool) -> None:
    base: dict[str, Any] = {"text": "hello", "request_id": "a"}
    one = content_digest(inference_pb2.GenerateRequest(**base))
    other = content_digest(inference_pb2.GenerateRequest(**(base | change)))
    assert (one == other) == same


@given(st.lists(st.floats(0, 1e5), min_size=6, max_size=6))
def test_parts_of_the_time_split_add_up(times: list[float]) -> None:
    *marks, handed_at = sorted(times)
    outcome = Outcome(
        SloClass.STANDARD, Promise(1, 1, None, None, at_risk=False), Marks(*marks), has_tokens=True,
        prompt_tokens=1, cached_prompt_tokens=0, output_tokens=2, attempts=1, path=Path.AGGREGATED,
        tpot_s=None, max_gap_s=0.0, reasons=(FinishReason.EOS,), error="",
    )  # fmt: skip
    finished = finished_to_pb(outcome, None, handed_at)
    split = finished.split
    parts = split.queue_ms + split.prefill_ms + split.handoff_ms + split.decode_ms + split.relay_ms
    assert parts == pytest.approx(finished.delivery.e2e_ms, abs=1e-6)
