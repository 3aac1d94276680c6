"""Reports of a prefill engine become offers and a commit, and the end of a handoff frees the sequence."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable

import pytest
import torch

from engine.core import commands
from engine.core.commands import BeginLoan, Cancel, Command, Decode, Release
from engine.core.report import Failure, Filled, Load, StepReport
from engine.device import mark_steps
from kvtransfer.errors import FenceBrokenError, FenceError, WrongIncarnationError
from kvtransfer.fence import FenceGuard
from kvtransfer.handoff import SenderLimits
from kvtransfer.manifest import Commit, Offer, SenderAbort
from kvtransfer.pools.host_blocks import InPlace
from kvtransfer.pools.pool import BlockSource, Publication
from kvtransfer.sending.lending import LoanRefusedError
from scheduling.columns import TokenColumns
from scheduling.request import FailureReason, Fence, FinishReason, Part, SequenceSpec
from tests.worker.client import spec_of
from worker.commands import CancelHandles, PreCopy
from worker.handoff.sides import HandoffSides, SenderSide
from worker.metrics import WorkerMetrics
from worker.streams.hub import Hub
from worker.streams.routers import RouterSession, Sequences

LOAD = Load(1, 0, 0, 0, 8, 0, 0)


class BytesPool:
    """Blocks in a bytearray."""

    fd = None
    num_blocks = 8
    block_bytes = 32

    def __init__(self) -> None:
        self.memory = bytearray(self.num_blocks * self.block_bytes)

    def block_bytes_view(self, block: int) -> memoryview:
        return memoryview(self.memory)[block * self.block_bytes : (block + 1) * self.block_bytes]


class Scene:
    """A sender's side whose engine and router are lists."""

    def __init__(self, limits: SenderLimits | None = None, source: BlockSource | None = None) -> None:
        self.engine: list[Command] = []
        self.failed: list[tuple[int, FailureReason, str]] = []
        self.side = SenderSide(
            "source",
            source or InPlace(BytesPool()),
            4,
            FenceGuard(),
            submit=self.engine.append,
            fail=lambda *failure: self.failed.append(failure),
            metrics=WorkerMetrics(),
            limits=limits,
        )

    def begin(self, handle: int, choices: tuple[int, ...] = (0,)) -> SequenceSpec:
        spec = spec_of(range(6), source="source", target="target", choices=choices)
        spec = dataclasses.replace(spec, handle=handle)
        self.side.begin(spec)
        return spec

    def report(self, **fields: object) -> None:
        self.side.on_report(StepReport(load=LOAD, **fields))  # type: ignore[arg-type]  # any of its fields

    def complete(self, handle: int, reasons: list[FinishReason]) -> None:
        rows = len(reasons)
        tokens = TokenColumns(
            handles=[77, *[handle] * rows],
            choices=[0, *range(rows)],
            indexes=[3, *[0] * rows],
            token_ids=[1, *range(50, 50 + rows)],
            finish_reasons=[0, *reasons],
            text_lengths=[1, *[1] * rows],
            text_utf8=b"x" * (rows + 1),
        )
        filled = [
            Filled(handle, 0, (5,), (b"a",), complete=False),
            Filled(handle, 1, (6,), (b"b",), complete=True),
        ]
        self.report(tokens=tokens, filled=filled)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    made.side.close()


async def events_of(scene: Scene, spec: SequenceSpec) -> list[Offer | Commit | SenderAbort]:
    opened = scene.side.handoffs.open(spec.fence, 0)
    return [event async for event in scene.side.handoffs.events(opened)]


async def test_blocks_are_offered_and_the_first_tokens_ride_in_the_commit(scene: Scene) -> None:
    spec = scene.begin(1)
    scene.complete(1, [FinishReason.NONE])
    *offers, commit = await events_of(scene, spec)
    assert [index for offer in offers if isinstance(offer, Offer) for index in offer.indexes] == [0, 1]
    assert isinstance(commit, Commit)
    assert commit.num_tokens == 6
    assert (commit.first_tokens.token_ids, commit.first_tokens.text_utf8) == ([50], b"")
    scene.side.handoffs.acknowledge(spec.fence, 0)
    assert scene.engine == [Release(1)]
    assert scene.failed == []


async def test_a_choice_that_goes_on_is_reason_enough_to_commit(scene: Scene) -> None:
    spec = scene.begin(1, choices=(0, 1))
    scene.complete(1, [FinishReason.EOS, FinishReason.NONE])
    commit = (await events_of(scene, spec))[-1]
    assert isinstance(commit, Commit)
    assert commit.first_tokens.finish_reasons == [FinishReason.EOS, FinishReason.NONE]


async def test_nothing_is_handed_over_when_every_choice_is_finished(scene: Scene) -> None:
    spec = scene.begin(1, choices=(0, 1))
    opened = scene.side.handoffs.open(spec.fence, 0)
    scene.complete(1, [FinishReason.EOS, FinishReason.LENGTH])
    assert [event async for event in scene.side.handoffs.events(opened)] == [SenderAbort("finished")]
    assert scene.engine == [Release(1)]
    assert scene.failed == [], "the router has its last token; nothing failed"


async def test_a_receiver_that_gives_up_frees_the_sequence_and_fails_it(scene: Scene) -> None:
    spec = scene.begin(1)
    scene.side.handoffs.give_up(spec.fence, "no room")
    assert scene.engine == [Release(1)]
    assert scene.failed == [(1, FailureReason.HANDOFF, "no room")]


async def test_an_engine_failure_reaches_the_receiver_once(scene: Scene) -> None:
    spec = scene.begin(1)
    opened = scene.side.handoffs.open(spec.fence, 0)
    scene.report(failures=[Failure(1, FailureReason.INTERNAL, "broken")], freed=[1])
    assert [event async for event in scene.side.handoffs.events(opened)] == [SenderAbort("broken")]
    assert scene.failed == []


async def test_a_cancelled_sequence_is_not_held_for_its_receiver(scene: Scene) -> None:
    scene.begin(1)
    scene.side.cancel(1)
    assert scene.engine == [Release(1)]
    assert scene.failed == []
    assert len(scene.side.handoffs) == 0


async def test_blocks_that_are_reported_after_a_cancel_are_not_offered(scene: Scene) -> None:
    spec = scene.begin(1)
    scene.side.cancel(1)
    scene.complete(1, [FinishReason.NONE])
    with pytest.raises(FenceBrokenError, match="cancelled"):
        scene.side.handoffs.open(spec.fence, 0)
    assert scene.engine == [Release(1)]


ENDS: dict[str, Callable[[Hub, RouterSession, SequenceSpec], None]] = {
    "its router cancels it": lambda hub, session, _: hub.apply(session, CancelHandles((2,))),
    "its router is gone": lambda hub, session, _: hub.disconnect(session),
    "a later session ends it": lambda hub, _, spec: hub.apply(hub.connect("other"), Decode(spec)),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_no_part_is_offered_after_its_end(
    scene: Scene, end: Callable[[Hub, RouterSession, SequenceSpec], None]
) -> None:
    """The engine frees the blocks as soon as it has the command, and others write to them."""
    sides = HandoffSides(frozenset({Decode}), scene.side)
    sides.can_offer = True
    hub = Hub("source", Sequences(LOAD), sides, scene.engine.append, FenceGuard(), WorkerMetrics())
    session = hub.connect("router")
    spec = dataclasses.replace(spec_of(range(6), target="source", request_id="moves"), handle=1)
    hub.apply(session, Decode(spec))
    fence = dataclasses.replace(spec.fence, attempt=1, source_incarnation="source", target_incarnation="b")
    hub.apply(session, PreCopy(1, Part(2, fence), 1))
    part = scene.engine[-1]
    assert isinstance(part, commands.PreCopy)
    end(hub, session, dataclasses.replace(spec, fence=dataclasses.replace(spec.fence, session=1)))
    assert Cancel(part.part) in scene.engine
    hub.on_report(StepReport(load=LOAD, filled=[Filled(part.part, 0, (5,), (b"a",), True, 4)]))
    with pytest.raises(FenceError):
        scene.side.handoffs.open(fence, 0)
    assert len(scene.side.handoffs) == 0


async def test_a_receiver_that_never_comes_does_not_pin_the_blocks() -> None:
    scene = Scene(SenderLimits(open_within_s=0.0))
    scene.begin(1)
    while not scene.engine:
        await asyncio.sleep(0)
    assert scene.engine == [Release(1)]
    assert scene.failed == [(1, FailureReason.HANDOFF, "never opened")]
    scene.side.close()


async def test_a_stranger_can_neither_give_up_nor_acknowledge(scene: Scene) -> None:
    spec = scene.begin(1)
    stranger = dataclasses.replace(spec.fence, target_incarnation="another")
    with pytest.raises(WrongIncarnationError, match="target_incarnation"):
        scene.side.handoffs.give_up(stranger, "not mine")
    scene.complete(1, [FinishReason.NONE])
    await events_of(scene, spec)
    assert scene.engine == []
    scene.side.handoffs.acknowledge(spec.fence, 0)
    scene.side.handoffs.acknowledge(spec.fence, 0)
    with pytest.raises(FenceBrokenError):
        scene.side.handoffs.acknowledge(stranger, 0)
    assert scene.engine == [Release(1)]


class SlowSource(InPlace):
    """Remembers what is to be shown."""

    def __init__(self) -> None:
        super().__init__(BytesPool())
        self.shown: list[tuple[int, int, tuple[int, ...], object]] = []

    def publish(self, handle: int, publication: Publication) -> None:
        self.shown.append((handle, publication.first_index, tuple(publication.blocks), publication.behind))


async def test_blocks_are_read_behind_the_step_that_fills_them() -> None:
    source = SlowSource()
    scene = Scene(source=source)
    spec = scene.begin(1)
    scene.side.offer(2, dataclasses.replace(spec.fence, request_id="moves"))
    mark = mark_steps(torch.device("cpu"))
    filled = [Filled(handle, 0, (5,), (b"a",), complete=False) for handle in (1, 2)]
    scene.report(filled=filled, filled_behind=mark)
    assert source.shown == [(1, 0, (5,), mark), (2, 0, (5,), mark)]
    scene.side.close()


class LendingScene(Scene):
    """A sender's side that lends."""

    def __init__(self) -> None:
        super().__init__()
        self.side = SenderSide(
            "source",
            InPlace(BytesPool()),
            4,
            FenceGuard(),
            submit=self.engine.append,
            fail=lambda *failure: self.failed.append(failure),
            metrics=WorkerMetrics(),
            new_handle=lambda: 50,
        )

    def lend(self) -> asyncio.Task[None]:
        assert self.side.lending is not None
        fence = Fence("", "prefix", 0, 1, 0, "source", "target", "target")
        return asyncio.create_task(self.side.lending.lend(fence, [b"a" * 16], 5.0))

    def held(self) -> None:
        self.report(filled=[Filled(50, 0, (5,), (b"a" * 16,), complete=True)])


async def test_the_engine_holds_blocks_for_as_long_as_they_are_lent() -> None:
    scene = LendingScene()
    lending = scene.lend()
    await asyncio.sleep(0)
    assert scene.engine == [BeginLoan(50, (b"a" * 16,), 5.0)]
    scene.held()
    await lending
    assert len(scene.side.handoffs) == 1
    scene.side.close()
    assert scene.engine[1:] == [Release(50)]
    assert scene.failed == [], "no sequence has failed"


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_borrower_that_leaves_gives_the_blocks_back_once(is_held: bool) -> None:
    scene = LendingScene()
    lending = scene.lend()
    await asyncio.sleep(0)
    if is_held:
        scene.held()
    lending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await lending
    scene.held()
    assert scene.engine[1:] == [Release(50)]
    assert len(scene.side.handoffs) == 0
    scene.side.close()


async def test_blocks_that_are_not_there_are_not_lent() -> None:
    scene = LendingScene()
    lending = scene.lend()
    await asyncio.sleep(0)
    scene.report(failures=[Failure(50, FailureReason.NO_BLOCKS, "gone")], freed=[50])
    with pytest.raises(LoanRefusedError, match="none of the blocks is there"):
        await lending
    assert scene.engine[1:] == []
    scene.side.close()
