"""The watch strikes the right target at the right moment, shown with real messages of one request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from baton.v1 import inference_pb2
from baton.worker.v1 import attempt_pb2, kvtransfer_pb2, worker_pb2
from tests.chaos.plan import ALL, MESSAGE_KINDS, Fault, Kind, Phase, Place
from tests.chaos.sightings import Call, Life, Mark, Method, Sighting
from tests.chaos.watch import BLOCK_BYTES, SPARED_FROM_ATTEMPT, SPARED_WHEN_LOST_FROM, Aim, Hit, Watch
from tests.patience import PATIENCE_S

REQUEST = "r"
LIMIT_S = PATIENCE_S


def _fence(attempt: int) -> attempt_pb2.Fence:
    return attempt_pb2.Fence(request_id=REQUEST, attempt=attempt)


def _sequence(attempt: int) -> worker_pb2.SequenceSpec:
    return worker_pb2.SequenceSpec(handle=attempt, fence=_fence(attempt))


def _report(attempt: int) -> worker_pb2.WorkResponse:
    tokens = attempt_pb2.TokenColumns(handles=[attempt, attempt], indexes=[0, 1])
    return worker_pb2.WorkResponse(step=worker_pb2.StepReport(tokens=tokens))


class Scene:
    """The links of one request, and a watch that sees what passes there."""

    def __init__(self) -> None:
        self.watch = Watch()
        self.watch.peers = {
            Place.ROUTER: ("router-0", "router-1"),
            Place.PREFILL: ("prefill-0", "prefill-1"),
            Place.DECODE: ("decode-0", "decode-1"),
            Place.REDIS: ("redis",),
            Place.GATEWAY: ("gateway-0", "gateway-1"),
        }
        self.life = self.watch.lives[REQUEST] = Life(gateway="gateway-0")
        self.door = self._call("router-0", Method.GENERATE)
        self.prefill = self._call("prefill-0", Method.WORK)
        self.decode = self._call("decode-0", Method.WORK)
        self.open = self._call("prefill-0", Method.OPEN)
        self.fetch = self._call("prefill-0", Method.FETCH)
        self.fates: list[Kind | None] = []
        self.acts: list[str] = []

    def _call(self, link: str, method: Method) -> Call:
        return Call(link, method, self.watch.lives)

    async def passes(self, seen: Sequence[Sighting], size: int = 100) -> None:
        self.fates.append(self.watch.coming(seen, size))
        await self.watch.passage(seen)
        self.watch.passed(seen)
        await asyncio.sleep(0)

    async def live(self, attempt: int = 1) -> None:
        """From the call to the fourth report."""
        ask = inference_pb2.GenerateRequest(request_id=REQUEST).SerializeToString()
        await self.passes(self.door.sent(ask))
        accepted = inference_pb2.GenerationEvent(accepted=inference_pb2.Accepted())
        await self.passes(self._told(accepted))
        await self.dispatch(attempt)
        fetch = kvtransfer_pb2.FetchRequest(fence=_fence(attempt)).SerializeToString()
        assert self.fetch.sent(fetch) == ()
        piece = kvtransfer_pb2.FetchResponse(data=bytes(BLOCK_BYTES)).SerializeToString()
        await self._opened(attempt, kvtransfer_pb2.OpenResponse(offer=kvtransfer_pb2.Offer()))
        await self.passes(self.fetch.answered(piece), len(piece))
        await self.passes(self.decode.answered(worker_pb2.WorkResponse().SerializeToString()))
        await self.passes(self.prefill.answered(_report(attempt).SerializeToString()))
        await self._opened(attempt, kvtransfer_pb2.OpenResponse(commit=kvtransfer_pb2.Commit()))
        await self.passes(self.fetch.answered(piece), len(piece))
        tokens = inference_pb2.GenerationEvent(tokens=inference_pb2.Tokens())
        for _ in range(4):
            await self.passes(self.decode.answered(_report(attempt).SerializeToString()))
        await self.passes(self._told(tokens))

    async def dispatch(self, attempt: int) -> None:
        receive = worker_pb2.Receive(sequence=_sequence(attempt))
        await self.passes(self.decode.sent(worker_pb2.WorkRequest(receive=receive).SerializeToString()))
        prefill = worker_pb2.Prefill(sequence=_sequence(attempt))
        await self.passes(self.prefill.sent(worker_pb2.WorkRequest(prefill=prefill).SerializeToString()))

    async def _opened(self, attempt: int, event: kvtransfer_pb2.OpenResponse) -> None:
        fence = kvtransfer_pb2.OpenRequest(fence=_fence(attempt)).SerializeToString()
        assert self.open.sent(fence) == ()
        await self.passes(self.open.answered(event.SerializeToString()))

    def _told(self, event: inference_pb2.GenerationEvent) -> Sequence[Sighting]:
        return self.door.answered(inference_pb2.GenerateResponse(event=event).SerializeToString())

    def aim(self, fault: Fault, only: str = "") -> Aim:
        return Aim(fault, self.acts.append, later_s=0.0, only=only)

    async def striking(self, aim: Aim, limit_s: float = LIMIT_S) -> asyncio.Task[Hit | None]:
        """Begin to wait for the moment to strike."""
        task = asyncio.create_task(self.watch.strike(aim, limit_s))
        await asyncio.sleep(0)
        return task

    async def live_under(self, aim: Aim, limit_s: float = LIMIT_S, attempt: int = 1) -> Hit | None:
        striking = await self.striking(aim, limit_s)
        await self.live(attempt)
        return await striking


async def test_streams_over_grpc_are_no_aim_of_what_strikes_gateways() -> None:
    scene = Scene()
    scene.life.gateway = ""
    aim = scene.aim(Fault(Kind.KILL, Phase.DECODE, Place.GATEWAY))
    assert await scene.live_under(aim, 0.1) is None
    assert scene.acts == []


@pytest.mark.parametrize("kind", Kind)
async def test_every_fault_strikes_the_request_in_its_phase_and_place(kind: Kind) -> None:
    for fault in (entry for entry in ALL if entry.kind is kind):
        await _struck_by(fault)


async def _struck_by(fault: Fault) -> None:
    scene = Scene()
    acts: list[tuple[str, Phase]] = []
    aim = Aim(fault, lambda name: acts.append((name, scene.life.phase)), later_s=0.0)
    hit = await scene.live_under(aim)
    assert hit is not None
    assert hit.request_id == REQUEST
    ((name, phase),) = acts
    at = {
        Place.ROUTER: "router-0",
        Place.PREFILL: "prefill-0",
        Place.DECODE: "decode-0",
        Place.REDIS: "redis",
        Place.GATEWAY: "gateway-0",
        Place.CLIENT_ROUTER: "gateway-0>router-0",
        Place.ROUTER_REDIS: "router-0>redis",
        Place.ROUTER_PREFILL: "router-0>prefill-0",
        Place.ROUTER_DECODE: "router-0>decode-0",
        Place.DECODE_PREFILL: "decode-0>prefill-0",
    }
    assert name == hit.name == at[fault.place]
    assert [fate for fate in scene.fates if fate] == ([fault.kind] if fault.kind in MESSAGE_KINDS else [])
    # As a message is on its way, its sender is further than its receiver.
    on_its_way = {
        Phase.QUEUE: {Phase.QUEUE, Phase.PREFILL},
        Phase.HANDOFF: {Phase.HANDOFF, Phase.PREFILL},
        Phase.RELAY: {Phase.DECODE},
    }
    assert phase in on_its_way.get(fault.phase, {fault.phase}), fault


async def test_tokens_stay_in_the_relay_until_it_is_struck() -> None:
    scene = Scene()
    await scene.live()
    aim = scene.aim(Fault(Kind.KILL, Phase.RELAY, Place.ROUTER))
    striking = await scene.striking(aim)
    report = [Sighting(Mark.REPORTED, REQUEST, "decode-0")]
    await scene.passes(report)
    delivery = asyncio.create_task(scene.watch.passage([Sighting(Mark.DELIVERED, REQUEST, "router-0")]))
    await asyncio.sleep(0)
    assert not delivery.done()
    assert not scene.acts
    await scene.passes(report)
    assert scene.acts == ["router-0"]
    await striking
    await delivery


SPARED_FROM = {
    Kind.NO_MEMORY: SPARED_FROM_ATTEMPT,
    Kind.KILL: SPARED_WHEN_LOST_FROM,
    Kind.HALF_OPEN: SPARED_WHEN_LOST_FROM,
}


@pytest.mark.parametrize("kind", SPARED_FROM)
async def test_only_a_request_with_few_attempts_left_is_spared(kind: Kind) -> None:
    for attempt in (SPARED_FROM[kind] - 1, SPARED_FROM[kind]):
        scene = Scene()
        for earlier in range(1, attempt):
            await scene.dispatch(earlier)
        aim = scene.aim(Fault(kind, Phase.DECODE, Place.DECODE))
        await scene.live_under(aim, 0.2, attempt)
        assert scene.acts == (["decode-0"] if attempt < SPARED_FROM[kind] else [])


async def test_failures_go_with_the_request_to_another_router() -> None:
    life = Life(attempts={1, 2, 3})
    life.advance(Sighting(Mark.ASKED, REQUEST, "router-1", session=1))
    assert (life.attempts, life.failed_before) == (set(), 2)


async def second_request(scene: Scene) -> None:
    """Let another request come to the same router and workers, and decode there."""
    scene.watch.lives["other"] = Life(
        "router-0", "prefill-0", "decode-0", gateway="gateway-0", phase=Phase.DECODE, attempts={1}
    )
    await scene.passes([Sighting(Mark.REPORTED, "other", "decode-0")])


async def test_a_second_fault_strikes_the_same_request_and_no_other() -> None:
    scene = Scene()
    await scene.live()
    aim = scene.aim(Fault(Kind.CUT, Phase.DECODE, Place.ROUTER_DECODE), REQUEST)
    striking = await scene.striking(aim)
    await second_request(scene)
    assert not scene.acts
    await scene.passes([Sighting(Mark.REPORTED, REQUEST, "decode-0")])
    assert scene.acts == ["router-0>decode-0"]
    hit = await striking
    assert hit is not None
    assert hit.request_id == REQUEST


async def test_a_second_fault_does_not_wait_for_a_stream_that_is_over() -> None:
    scene = Scene()
    aim = scene.aim(Fault(Kind.CUT, Phase.DECODE, Place.DECODE), REQUEST)
    striking = await scene.striking(aim)
    scene.watch.end(REQUEST)
    assert await striking is None
    assert REQUEST not in scene.watch.lives


async def test_a_client_without_a_gateway_has_connections_of_its_own() -> None:
    scene = Scene()
    scene.life.gateway = ""
    aim = scene.aim(Fault(Kind.ONE_WAY, Phase.TOKENISE, Place.CLIENT_ROUTER))
    await scene.live_under(aim)
    assert scene.acts == ["client>router-0"]


@pytest.mark.parametrize(
    ("down", "veteran"),
    [
        ({"decode-1"}, False),
        ({"decode-0"}, False),
        ({"router-1>decode-1"}, False),
        ({"router-1>decode-0"}, False),
        (set(), True),
    ],
    ids=str,
)
async def test_somebody_of_each_kind_is_left(down: set[str], veteran: bool) -> None:
    scene = Scene()
    scene.watch.down |= down
    if veteran:
        scene.decode = Call("decode-2", Method.WORK, scene.watch.lives)
    aim = scene.aim(Fault(Kind.KILL, Phase.DECODE, Place.DECODE))
    assert await scene.live_under(aim, 0.2) is None
    assert not scene.acts


async def test_a_stream_that_is_over_is_not_struck() -> None:
    scene = Scene()
    del scene.watch.lives[REQUEST]
    aim = scene.aim(Fault(Kind.KILL, Phase.DECODE, Place.DECODE))
    assert await scene.live_under(aim, 0.2) is None
    assert not scene.acts
