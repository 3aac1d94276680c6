"""Workers read what routers write, and refuse by name what makes no sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.worker.v1 import worker_pb2 as pb
from engine.core.commands import Decode, Prefill
from engine.core.report import Failure, Load, Prefilled, StepReport
from router.core.model.actions import SendCancel, SendDecode, SendDrain, SendPrefill, SendReceive
from router.core.model.events import SequenceFailed
from router.links.convert_worker import command_to_pb, joined_from_pb, report_from_pb, spec_to_pb
from scheduling.columns import PromptLogprobs, TokenColumns
from scheduling.request import FailureReason, Fence, PrefixSource, SamplingParams, SequenceSpec, StopRules
from tests.drawing import FINITE, LARGE, SMALL, SOME_NAME, drawn
from worker.commands import CancelHandles, DrainWorker, ReceiveFrom
from worker.errors import MalformedCommandError
from worker.streams.convert import command_from_pb, report_to_pb, spec_from_pb

biases = st.dictionaries(SMALL, FINITE, max_size=3).map(lambda bias: tuple(sorted(bias.items())))
specs = drawn(
    SequenceSpec,
    handle=LARGE,
    fence=drawn(Fence, request_id=SOME_NAME),
    prompt_token_ids=st.lists(SMALL, min_size=1, max_size=5).map(tuple),
    choices=st.lists(SMALL, min_size=1, max_size=3, unique=True).map(tuple),
    sampling=drawn(SamplingParams, seed=LARGE, logit_bias=biases),
    prefix_source=st.none() | drawn(PrefixSource, address=SOME_NAME, incarnation=SOME_NAME),
    session_age_seconds=st.floats(0, 1e6),
)
SPEC = SequenceSpec(
    7, Fence("t", "r", 0, 0, 0, "s", "d"), (1, 2), (), (0,), SamplingParams(), StopRules(max_tokens=4)
)


@given(specs)
def test_a_spec_survives_the_way_from_router_to_worker(spec: SequenceSpec) -> None:
    assert spec_from_pb(pb.SequenceSpec.FromString(spec_to_pb(spec).SerializeToString())) == spec


@given(specs, SOME_NAME)
def test_every_command_survives_it(spec: SequenceSpec, address: str) -> None:
    for sent, read in (
        (SendPrefill("w", spec), Prefill(spec)),
        (SendDecode("w", spec), Decode(spec)),
        (SendReceive("w", spec, address), ReceiveFrom(spec, source_address=address)),
        (SendCancel("w", (spec.handle,)), CancelHandles((spec.handle,))),
        (SendDrain("w"), DrainWorker()),
    ):
        assert command_from_pb(command_to_pb(sent)) == read


def test_a_report_survives_the_way_back() -> None:
    report = StepReport(
        load=Load(9, 1, 2, 3, 4, 5, 6),
        step_seconds=0.25,
        tokens=TokenColumns([7], [0], [3], [42], [2], [2], b"hi", [0], [-0.5], [1], [42], [-0.5], [0], [2]),
        prefilled=[Prefilled(7, 16)],
        prompt_logprobs=[PromptLogprobs(7, 3, (-0.5, -0.25), 1, (42, 43), (-0.5, -0.125))],
        failures=[
            Failure(8, FailureReason.HANDOFF, "gone"),
            Failure(9, FailureReason.SUPERSEDED, "late", session=2, session_age_seconds=0.5),
        ],
    )
    read = report_from_pb("w", report_to_pb(report, draining=True).step)
    assert read.tokens == report.tokens
    assert (read.load.step, read.load.free_blocks, read.load.context_tokens) == (9, 4, 6)
    assert read.load.draining
    assert (read.prefilled, read.cached_tokens) == ((7,), (16,))
    assert list(read.prompt_logprobs) == report.prompt_logprobs
    assert read.failures == (
        SequenceFailed(8, FailureReason.HANDOFF, "gone"),
        SequenceFailed(9, FailureReason.SUPERSEDED, "late", session=2, session_age_seconds=0.5),
    )


@pytest.mark.parametrize(
    ("damage", "field"),
    [
        (lambda spec: spec.ClearField("fence"), "fence.request_id"),
        (lambda spec: spec.ClearField("prompt_token_ids"), "prompt_token_ids"),
        (lambda spec: spec.ClearField("choices"), "choices"),
        (lambda spec: spec.choices.extend([0, 0]), "choices"),
        (lambda spec: spec.sampling.ClearField("seed"), "sampling.seed"),
        (lambda spec: spec.stop.ClearField("skip_special_tokens"), "stop.skip_special_tokens"),
        (lambda spec: spec.ClearField("sampling"), "sampling.temperature"),
        (lambda spec: spec.stop.ClearField("max_tokens"), "stop.max_tokens"),
        (lambda spec: setattr(spec.prefix_source, "address", "h:1"), "prefix_source is '' at 'h:1'"),
    ],
)
def test_a_spec_with_a_hole_is_refused_by_the_holes_name(damage: object, field: str) -> None:
    message = spec_to_pb(SPEC)
    assert callable(damage)
    damage(message)
    with pytest.raises(MalformedCommandError, match=field) as refused:
        spec_from_pb(message)
    assert refused.value.handle == 7


@pytest.mark.parametrize(
    ("message", "sentence", "handle"),
    [
        (pb.WorkRequest(), "command is empty", None),
        (pb.WorkRequest(hello=pb.Hello()), "hello came twice", None),
        (pb.WorkRequest(receive=pb.Receive(sequence=spec_to_pb(SPEC))), "source_address is empty", 7),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    message: pb.WorkRequest, sentence: str, handle: int | None
) -> None:
    with pytest.raises(MalformedCommandError, match=sentence) as refused:
        command_from_pb(message)
    assert refused.value.handle == handle


@pytest.mark.parametrize(("announced", "num_stages"), [(0, 1), (4, 4)])
def test_a_worker_that_names_no_stages_has_one(announced: int, num_stages: int) -> None:
    cost = pb.CostModel(coefficients=[0.0] * 6, ratio_q10=1, ratio_q50=1, ratio_q95=1)
    welcome = pb.Welcome(role=pb.WORKER_ROLE_DECODE, cost_model=cost, num_stages=announced)
    assert joined_from_pb(welcome, "w1:1").facts.num_stages == num_stages
