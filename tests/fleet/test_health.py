"""Every service answers the standard health check and reflection, as container platforms ask for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # type: ignore[import-untyped]
    ProtoReflectionDescriptorDatabase,  # ships no annotations
)

from baton.fleet import Fleet, FleetSpec

pytestmark = pytest.mark.integration

SERVES = {
    "router-0": {"baton.v1.InferenceService", "baton.operators.v1.FleetService"},
    "prefill-0": {"baton.worker.v1.WorkerService", "baton.worker.v1.KVTransferService"},
    "decode-0": {"baton.worker.v1.WorkerService"},
}


def check(address: str) -> int:
    command = [sys.executable, "-m", "baton.cli", "health", address]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode


def services(address: str) -> set[str]:
    with grpc.insecure_channel(address) as channel:
        return set(ProtoReflectionDescriptorDatabase(channel).get_services())


async def test_every_service_is_healthy_and_says_what_it_serves(tiny_llama: Path, run_dir: Path) -> None:
    async with Fleet(FleetSpec(model=tiny_llama, run_dir=run_dir)) as fleet:
        for name, served in SERVES.items():
            address = fleet.process(name).address
            assert await asyncio.to_thread(check, address) == 0, name
            assert served <= await asyncio.to_thread(services, address), name
        address = fleet.process("decode-0").address
        fleet.process("decode-0").kill()
        await fleet.process("decode-0").wait()
        assert await asyncio.to_thread(check, address) != 0
