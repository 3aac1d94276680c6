"""Whatever comes over a Work stream: the worker lives, serves its other routers, and frees every block."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest
from hypothesis import strategies as st

from baton.worker.v1 import worker_pb2 as pb
from router.links.convert_worker import spec_to_pb
from scheduling.request import FinishReason
from tests.fuzzing import fuzz, messages
from tests.worker.client import WorkClient, spec_of
from tests.worker.conftest import Pair, WorkerProcess

pytestmark = pytest.mark.integration

PROMPT = [3 + i % 90 for i in range(21)]


def nearly_right(target: str) -> st.SearchStrategy[pb.WorkRequest]:
    """Any command; and one that would be obeyed, with what any other says put over it."""
    decode = pb.WorkRequest(
        decode=pb.Decode(sequence=spec_to_pb(spec_of(PROMPT, target=target, max_tokens=4)))
    )

    def over(odd: pb.WorkRequest) -> pb.WorkRequest:
        request = pb.WorkRequest()
        request.CopyFrom(decode)
        request.decode.sequence.MergeFrom(odd.decode.sequence)
        return request

    anything = messages(pb.WorkRequest)
    return st.one_of(anything, anything.map(over))


@pytest.mark.parametrize("role", ["source", "target"])
async def test_any_command_is_answered_and_harms_nobody(pair: Pair, role: str) -> None:
    worker: WorkerProcess = getattr(pair, role)
    async with WorkClient(worker.address, "neighbour") as neighbour:
        came_through: list[int] = []

        async def send(requests: list[pb.WorkRequest]) -> None:
            try:
                async with WorkClient(worker.address, "odd") as odd:
                    for request in requests:
                        if request.WhichOneof("command") != "drain":  # it would do as it is told
                            await odd.write(request)
                    last = await odd.decode(spec_of(PROMPT, target=target, max_tokens=2))
                    await odd.until_finished(last)  # all before it have been read by then
                    came_through.append(last)
            except (grpc.aio.AioRpcError, AssertionError):
                assert worker.process.poll() is None, "the worker died"

        target = neighbour.welcome.incarnation
        await fuzz(st.lists(nearly_right(target), max_size=3), send, 60)
        assert len(came_through) > 10, "most streams live on: one wrong command is no reason to end one"
        if role == "target":
            handle = await neighbour.decode(spec_of(PROMPT[::-1], target=target, max_tokens=4))
            await neighbour.until_finished(handle)
            assert neighbour.heard[handle].finished[0] == FinishReason.LENGTH
        await neighbour.until_all_free()


async def test_bytes_that_are_no_message_are_refused_without_a_stack_trace(pair: Pair) -> None:
    worker = pair.source
    lone_surrogate = b"\x0a\x05\x0a\x03\xed\xa0\x80"
    stub = "/baton.worker.v1."
    async with grpc.aio.insecure_channel(worker.address) as channel, WorkClient(worker.address) as client:
        acknowledge: Any = channel.unary_unary(f"{stub}KVTransferService/Acknowledge")
        abort: Any = channel.unary_unary(f"{stub}KVTransferService/Abort")
        open_handoff: Any = channel.unary_stream(f"{stub}KVTransferService/Open")
        calls: list[Any] = [acknowledge(lone_surrogate), abort(lone_surrogate)]
        calls.append(open_handoff(lone_surrogate).read())
        work: Any = channel.stream_stream(f"{stub}WorkerService/Work")()
        await work.write(lone_surrogate)
        calls.append(work.read())
        begun: Any = channel.stream_stream(f"{stub}WorkerService/Work")()
        await begun.write(pb.WorkRequest(hello=pb.Hello(router_id="odd"), number=1).SerializeToString())
        await begun.read()
        await begun.write(lone_surrogate)
        calls.append(ended(begun))
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError, match="the bytes sent are no") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await client.until_all_free()
    assert "Traceback" not in worker.log.read_text()


async def ended(call: Any) -> None:
    """Read a stream to its end, which is an error."""
    while await call.read() is not grpc.aio.EOF:
        pass
