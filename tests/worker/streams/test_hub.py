"""Commands of several routers, reports of one engine: who hears what, and who is refused."""

import dataclasses

import pytest

from baton.worker.v1 import worker_pb2 as pb
from engine.core import commands as engine_commands
from engine.core.report import Failure, Load, Prefilled, StepReport
from kvtransfer.fence import FenceGuard
from scheduling.columns import TokenColumns
from scheduling.cost_model import StepShape
from scheduling.request import FailureReason, Fence, Part, SequenceSpec
from tests.patience import PATIENCE_S
from tests.worker.client import spec_of
from worker.commands import CancelHandles, DrainWorker, PreCopy, ReceiveFrom, StartCommand
from worker.handoff.sides import HandoffSides
from worker.metrics import WorkerMetrics
from worker.streams import hub as hub_module
from worker.streams.convert import report_to_pb
from worker.streams.hub import Hub
from worker.streams.routers import MAX_OUTBOUND, RouterSession, Sequences

LOAD = Load(
    step=1, running=1, waiting=0, pending_prefill_tokens=0, free_blocks=8, cached_blocks=0, context_tokens=0
)


class RecordingSides(HandoffSides):
    def __init__(self) -> None:
        self.start_commands = frozenset({engine_commands.Decode, ReceiveFrom})
        self.can_offer = True
        self.begun: list[int] = []
        self.cancelled: list[int] = []
        self.offered: dict[int, Fence] = {}

    def begin(self, command: StartCommand) -> None:
        self.begun.append(command.spec.handle)

    def offer(self, handle: int, fence: Fence) -> None:
        self.offered[handle] = fence

    def on_report(self, report: StepReport) -> None:
        pass

    def cancel(self, handle: int) -> None:
        self.cancelled.append(handle)

    async def close(self) -> None:
        pass


class Scene:
    """A hub whose engine is a list."""

    def __init__(self) -> None:
        self.engine: list[engine_commands.Command] = []
        self.sides = RecordingSides()
        self.metrics = WorkerMetrics()
        self.sequences = Sequences(LOAD)
        self.hub = Hub("me", self.sequences, self.sides, self.engine.append, FenceGuard(), self.metrics)

    def decode(self, session: RouterSession, router_handle: int, spec: SequenceSpec | None = None) -> int:
        """The engine's handle; -1 when refused."""
        before = len(self.sides.begun)
        given = spec or spec_of([1, 2, 3], target="me")
        self.hub.apply(session, engine_commands.Decode(dataclasses.replace(given, handle=router_handle)))
        return self.sides.begun[-1] if len(self.sides.begun) > before else -1

    def report(self, **fields: object) -> None:
        self.hub.on_report(StepReport(load=LOAD, **fields))  # type: ignore[arg-type]  # any of its fields


@pytest.fixture
async def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    # On a starved machine its 50 ms may pass between two lines of a test.
    monkeypatch.setattr(hub_module, "IDLE_REPORT_S", 3600.0)
    return Scene()


async def heard(session: RouterSession) -> list[pb.StepReport]:
    """Return a message as it is written to the stream."""
    reports = []
    while (report := await session.take(0.0)) is not None:
        reports.append(report_to_pb(report, draining=False).step)
    return reports


def tokens_of(*rows: tuple[int, int]) -> TokenColumns:
    """(handle, token id) rows with the token's number as text."""
    texts = [str(token_id).encode() for _, token_id in rows]
    return TokenColumns(
        handles=[handle for handle, _ in rows],
        choices=[0] * len(rows),
        indexes=[0] * len(rows),
        token_ids=[token_id for _, token_id in rows],
        finish_reasons=[0] * len(rows),
        text_lengths=[len(text) for text in texts],
        text_utf8=b"".join(texts),
    )


async def test_each_router_hears_of_its_own_sequences_under_its_own_handles(scene: Scene) -> None:
    left, right = scene.hub.connect("left"), scene.hub.connect("right")
    first, second = scene.decode(left, 5), scene.decode(right, 5)
    assert first != second, "two routers drew the same handle"
    scene.report(tokens=tokens_of((first, 11), (second, 22)), prefilled=[Prefilled(second, 16)])
    [to_left], [to_right] = await heard(left), await heard(right)
    assert (list(to_left.tokens.handles), list(to_left.tokens.token_ids)) == ([5], [11])
    assert (list(to_right.tokens.handles), list(to_right.tokens.token_ids)) == ([5], [22])
    assert to_right.tokens.text_utf8 == b"22"
    assert (list(to_left.prefilled_handles), list(to_right.prefilled_handles)) == ([], [5])


async def test_each_router_hears_of_its_preempted_sequences_and_the_step(
    scene: Scene,
) -> None:
    mine, other = scene.hub.connect("router-1"), scene.hub.connect("router-2")
    first, second = scene.decode(mine, 7), scene.decode(other, 7)
    scene.report(preempted=[first], resumed=[second], shape=StepShape(3, 2, 40, 0.0, 0, 2))
    (told,) = await heard(mine)
    assert (list(told.preempted_handles), list(told.resumed_handles)) == ([7], [])
    assert (told.shape.num_tokens, told.shape.num_decodes) == (3, 2)
    (told,) = await heard(other)
    assert (list(told.preempted_handles), list(told.resumed_handles)) == ([], [7])


async def test_a_failure_of_the_engine_is_told_once_and_ends_the_matter(scene: Scene) -> None:
    session = scene.hub.connect("r")
    handle = scene.decode(session, 5)
    scene.report(failures=[Failure(handle, FailureReason.NO_BLOCKS, "none left")])
    scene.sequences.fail(handle, FailureReason.HANDOFF, "late")
    scene.report(tokens=tokens_of((handle, 1)), freed=[handle])
    failures = [failure for step in await heard(session) for failure in step.failures]
    assert [(failure.handle, failure.message) for failure in failures] == [(5, "none left")]


async def test_a_cancelled_sequence_is_not_reported_of(scene: Scene) -> None:
    session = scene.hub.connect("r")
    handle = scene.decode(session, 5)
    scene.hub.apply(session, CancelHandles((5, 6)))
    assert scene.engine[-1] == engine_commands.Cancel(handle)
    assert scene.sides.cancelled == [handle]
    scene.report(tokens=tokens_of((handle, 1)))
    assert all(not step.tokens.handles for step in await heard(session))
    scene.hub.apply(session, CancelHandles((5,)))
    assert scene.sides.cancelled == [handle], "cancelled twice"


async def test_the_fence_is_broken_before_the_engine_may_free_blocks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = scene.hub.connect("r")
    handle = scene.decode(session, 5)
    had_command: list[bool] = []
    cancel = engine_commands.Cancel(handle)
    monkeypatch.setattr(scene.sides, "cancel", lambda _: had_command.append(cancel in scene.engine))
    scene.hub.apply(session, CancelHandles((5,)))
    assert had_command == [False]
    assert scene.engine[-1] == cancel


async def test_the_canceller_hears_the_end_and_all_hear_when_none_is_left(scene: Scene) -> None:
    mine, other = scene.hub.connect("router-1"), scene.hub.connect("router-2")
    first, second = scene.decode(mine, 7), scene.decode(mine, 8)
    scene.hub.apply(mine, CancelHandles((7, 8)))
    scene.report()
    await heard(mine), await heard(other)
    scene.report(freed=[first])
    assert len(await heard(mine)) == 1
    assert await heard(other) == [], "it hears of a busy worker with the next steps"
    scene.hub.on_report(StepReport(load=dataclasses.replace(LOAD, running=0), freed=[second]))
    assert len(await heard(mine)) == len(await heard(other)) == 1


async def test_a_router_cannot_cancel_anothers(scene: Scene) -> None:
    left, right = scene.hub.connect("left"), scene.hub.connect("right")
    scene.decode(left, 5)
    scene.hub.apply(right, CancelHandles((5,)))
    assert scene.sides.cancelled == []


async def test_a_broken_stream_ends_its_sequences_only(scene: Scene) -> None:
    left, right = scene.hub.connect("left"), scene.hub.connect("right")
    doomed, kept = scene.decode(left, 1), scene.decode(right, 1)
    scene.hub.disconnect(left)
    assert scene.sides.cancelled == [doomed]
    scene.report(tokens=tokens_of((doomed, 1), (kept, 2)))
    [to_right] = await heard(right)
    assert list(to_right.tokens.token_ids) == [2]


@pytest.mark.parametrize(
    ("kind", "changes", "sentence", "reason"),
    [
        (
            engine_commands.Prefill,
            {},
            "command is prefill; accepted by this kind of worker: decode, receive",
            pb.FAILURE_REASON_REFUSED,
        ),
        (
            engine_commands.Decode,
            {"target": "predecessor"},
            "target_incarnation is 'predecessor'; this process is 'me'",
            pb.FAILURE_REASON_FENCED,
        ),
    ],
)
async def test_what_is_not_for_this_process_is_refused(
    kind: type[engine_commands.Prefill | engine_commands.Decode],
    changes: dict[str, str],
    sentence: str,
    reason: int,
    scene: Scene,
) -> None:
    session = scene.hub.connect("r")
    spec = spec_of([1], target=changes.get("target", "me"))
    scene.hub.apply(session, kind(dataclasses.replace(spec, handle=3)))
    [step] = await heard(session)
    [failure] = step.failures
    assert (failure.handle, failure.reason) == (3, reason)
    assert sentence in failure.message
    assert scene.engine == []


async def test_a_handle_in_use_is_refused(scene: Scene) -> None:
    session = scene.hub.connect("r")
    assert scene.decode(session, 3) > 0
    assert scene.decode(session, 3) == -1


@pytest.mark.parametrize(("session_number", "attempt"), [(0, 5), (1, 0), (1, 1)])
async def test_an_attempt_that_is_not_newer_is_refused(
    session_number: int, attempt: int, scene: Scene
) -> None:
    session = scene.hub.connect("r")
    running = scene.decode(session, 1, spec_of([1], target="me", request_id="x", session=1, attempt=1))
    old = spec_of([1], target="me", request_id="x", session=session_number, attempt=attempt)
    assert scene.decode(session, 2, old) == -1
    assert scene.sides.cancelled == []
    assert running > 0
    [step] = await heard(session)
    is_older_session = session_number == 0
    reason = FailureReason.SUPERSEDED if is_older_session else FailureReason.FENCED
    assert [failure.reason for failure in step.failures] == [reason]


async def test_a_request_id_that_a_router_uses_again_begins_anew(scene: Scene) -> None:
    session = scene.hub.connect("r")
    spec = spec_of([1], target="me", request_id="x")
    for run in (1, 2, 3):
        fence = dataclasses.replace(spec.fence, router_id="r", router_incarnation="life", run=run, attempt=1)
        handle = scene.decode(session, run, dataclasses.replace(spec, fence=fence))
        assert handle > 0
        scene.report(tokens=tokens_of((handle, 11)), freed=[handle])
    assert scene.sides.cancelled == []
    late = dataclasses.replace(fence, run=2, attempt=2)
    assert scene.decode(session, 9, dataclasses.replace(spec, fence=late)) == -1


async def test_every_sequence_ends_with_a_word_to_its_router(scene: Scene) -> None:
    """A router that waits for what its worker does not hold would wait for ever."""
    session = scene.hub.connect("r")
    names = ["ends", "ends at its sender", "fails", "is cancelled"]
    handles = [scene.decode(session, number) for number, _ in enumerate(names)]
    ends, _, fails, _ = handles
    scene.hub.apply(session, CancelHandles((names.index("is cancelled"),)))
    scene.report(tokens=tokens_of((ends, 11)))
    scene.report(failures=[Failure(fails, FailureReason.INTERNAL, "a bug")], freed=handles)
    steps = await heard(session)
    released = [names[handle] for step in steps for handle in step.released_handles]
    failed = [names[failure.handle] for step in steps for failure in step.failures]
    assert (released, failed) == (["ends", "ends at its sender"], ["fails"])


async def test_a_newer_attempt_ends_the_older_one(scene: Scene) -> None:
    old_router, new_router = scene.hub.connect("old"), scene.hub.connect("new")
    older = scene.decode(old_router, 1, spec_of([1], target="me", request_id="x", session=0, attempt=3))
    later = spec_of([1], target="me", request_id="x", session=1, attempt=0)
    newer = scene.decode(new_router, 1, dataclasses.replace(later, session_age_seconds=7.0))
    assert newer > 0
    assert scene.sides.cancelled == [older]
    [step] = await heard(old_router)
    assert "superseded" in step.failures[0].message
    assert step.failures[0].reason == FailureReason.SUPERSEDED
    assert (step.failures[0].session, step.failures[0].session_age_seconds) == (1, 7.0)


async def test_choices_that_another_router_groups_differently_run_once(scene: Scene) -> None:
    first, second, third = (scene.hub.connect(name) for name in ("first", "second", "third"))

    def spec(session: int, choices: tuple[int, ...], attempt: int = 1) -> SequenceSpec:
        return spec_of([1], target="me", request_id="x", session=session, attempt=attempt, choices=choices)

    all_of_first = scene.decode(first, 1, spec(0, (0, 1, 2)))
    split = [scene.decode(second, choice, spec(1, (choice,))) for choice in (1, 2)]
    assert min(split) > 0
    assert scene.sides.cancelled == [all_of_first], "an attempt at one of its choices ends the whole"
    assert scene.decode(first, 2, spec(0, (0, 1), attempt=2)) == -1
    assert scene.decode(first, 3, spec(0, (0,), attempt=3)) > 0, "nobody else runs this choice"
    scene.report(freed=[all_of_first])
    together = scene.decode(third, 1, spec(2, (1, 2)))
    assert together > 0
    assert scene.sides.cancelled == [all_of_first, *split]
    scene.report(freed=[*split, together])
    assert scene.decode(second, 9, spec(1, (2,), attempt=2)) == -1


async def test_a_refused_router_hears_the_age_of_a_moved_session(scene: Scene) -> None:
    old_router, new_router = scene.hub.connect("old"), scene.hub.connect("new")
    fence = Fence("tenant", "x", 2, 1, 0, "me", "other")
    scene.hub.apply(new_router, PreCopy(1, Part(2, fence, session_age_seconds=7.0), 1))
    assert scene.decode(old_router, 1, spec_of([1], target="me", request_id="x", session=1, attempt=1)) == -1
    [step] = await heard(old_router)
    assert step.failures[0].session == 2
    assert 7.0 <= step.failures[0].session_age_seconds < 7.0 + PATIENCE_S


async def test_a_refused_router_hears_the_age_of_the_later_session(scene: Scene) -> None:
    old_router, new_router = scene.hub.connect("old"), scene.hub.connect("new")
    later = spec_of([1], target="me", request_id="x", session=2, attempt=1)
    scene.decode(new_router, 1, dataclasses.replace(later, session_age_seconds=7.0))
    assert scene.decode(old_router, 1, spec_of([1], target="me", request_id="x", session=1, attempt=1)) == -1
    [step] = await heard(old_router)
    assert step.failures[0].session == 2
    assert step.failures[0].session_age_seconds >= 7.0


async def test_a_name_at_two_routers_runs_twice_until_a_later_session(scene: Scene) -> None:
    routers = [scene.hub.connect(name) for name in ("one", "other")]

    def spec(router_id: str, session: int = 0, attempt: int = 1) -> SequenceSpec:
        made = spec_of([1], target="me", request_id="x", session=session, attempt=attempt)
        return dataclasses.replace(made, fence=dataclasses.replace(made.fence, router_id=router_id))

    handles = [scene.decode(router, 1, spec(router.router_id)) for router in routers]
    assert min(handles) > 0
    assert scene.sides.cancelled == []
    again = scene.decode(routers[0], 2, spec("one", attempt=2))
    assert scene.sides.cancelled == handles[:1]
    scene.report(freed=handles[:1])
    third = scene.hub.connect("third")
    assert scene.decode(third, 1, spec("third", session=1)) > again > 0
    assert scene.sides.cancelled == [*handles, again]
    assert scene.decode(routers[1], 2, spec("other", attempt=2)) == -1


async def test_a_draining_worker_takes_nothing_and_reports_when_empty(scene: Scene) -> None:
    session = scene.hub.connect("r")
    handle = scene.decode(session, 1)
    scene.hub.apply(session, DrainWorker())
    assert scene.hub.draining.is_set()
    assert scene.decode(session, 2) == -1
    scene.report(freed=[handle])
    await scene.hub.wait_until_empty()


async def test_a_router_that_does_not_read_is_let_go(scene: Scene) -> None:
    session = scene.hub.connect("r")
    handle = scene.decode(session, 1)
    for _ in range(MAX_OUTBOUND):
        scene.report(tokens=tokens_of((handle, 1)))
    assert not session.overflowed.is_set()
    scene.report(tokens=tokens_of((handle, 1)))
    assert session.overflowed.is_set()
    assert len(await heard(session)) == MAX_OUTBOUND


async def test_only_the_owner_of_a_prompt_hears_of_its_steps(scene: Scene) -> None:
    mine, other = scene.hub.connect("router-1"), scene.hub.connect("router-2")
    scene.decode(mine, 7)
    scene.report(shape=StepShape.of(0, 0, [(0, 64)]), step_seconds=0.1)
    await heard(mine), await heard(other)
    for done in (64, 128):
        scene.report(shape=StepShape.of(0, 0, [(done, 64)]), step_seconds=0.1)
    assert [report.shape.num_tokens for report in await heard(mine)] == [64, 64]
    assert await heard(other) == []
