"""A receiver that opens a handoff, hears up to one event, says so, and then hangs until it is killed."""

import asyncio
import sys

import grpc

from baton.worker.v1 import kvtransfer_pb2 as pb
from baton.worker.v1 import kvtransfer_pb2_grpc as pb_grpc
from runtime.rpc.convert import fence_to_pb
from scheduling.request import Fence


async def main(address: str, until_event: str) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: pb_grpc.KVTransferServiceAsyncStub = pb_grpc.KVTransferServiceStub(channel)
        fence = Fence("t", "r", 0, 0, 0, "source", "target")
        call = stub.Open(pb.OpenRequest(fence=fence_to_pb(fence), fingerprint="model"))
        async for event in call:
            if event.WhichOneof("event") == until_event:
                sys.stdout.write("heard\n")
                sys.stdout.flush()
                await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
