"""The composed fleet under what befalls containers: every stream equals the undisturbed one.

`make test-compose` runs these. They need a Docker engine, Compose 2, and about a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest
from openai import AsyncOpenAI

from baton import AsyncClient, Sampling, Stop
from tests.compose.engine import compose, run

pytestmark = [pytest.mark.compose, pytest.mark.integration, pytest.mark.timeout(1800)]

NUM_STREAMS, NUM_TOKENS = 8, 600
PROMPT = "Several things can be said about a list: "
BUDGETS_MB = {"baton-router": 150, "baton-gateway": 150, "baton-worker": 1200}
"""The largest size of each image, base image included."""


def container(service: str) -> str:
    return compose("ps", "--all", "--quiet", service).strip()


async def grpc_streams(begun: asyncio.Event) -> list[tuple[int, ...]]:
    """Return the tokens of each stream; sets `begun` when all have some."""
    begins = [asyncio.Event() for _ in range(NUM_STREAMS)]

    async def one(client: AsyncClient, seed: int) -> tuple[int, ...]:
        sampling = Sampling(temperature=1.0, seed=seed)
        stop = Stop(max_tokens=NUM_TOKENS, ignore_eos=True)
        tokens: list[int] = []
        async for event in client.generate(PROMPT + str(seed), sampling=sampling, stop=stop):
            received = getattr(event, "token_ids", ())
            tokens.extend(received)
            if len(tokens) > 20:
                begins[seed].set()
        return tuple(tokens)

    async with AsyncClient("127.0.0.1:50051", resume_grace_s=30.0) as client:
        streams = [asyncio.create_task(one(client, seed)) for seed in range(NUM_STREAMS)]
        await asyncio.gather(*(begin.wait() for begin in begins))
        begun.set()
        return list(await asyncio.gather(*streams))


async def http_streams(begun: asyncio.Event) -> list[str]:
    """Return the text of each stream through the gateway; sets `begun` when all have some."""
    begins = [asyncio.Event() for _ in range(NUM_STREAMS)]

    async def one(client: AsyncOpenAI, seed: int) -> str:
        texts: list[str] = []
        async for chunk in await client.completions.create(
            model="demo_model", prompt=PROMPT + str(seed), max_tokens=NUM_TOKENS, temperature=1.0, seed=seed,
            stream=True, extra_body={"ignore_eos": True},
        ):  # fmt: skip
            texts.extend(choice.text for choice in chunk.choices)
            if len(texts) > 20:
                begins[seed].set()
        return "".join(texts)

    async with AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", max_retries=0) as client:
        streams = [asyncio.create_task(one(client, seed)) for seed in range(NUM_STREAMS)]
        await asyncio.gather(*(begin.wait() for begin in begins))
        begun.set()
        return list(await asyncio.gather(*streams))


async def under(
    strike: Callable[[], None] | None,
) -> tuple[list[tuple[int, ...]], list[str]]:
    """Return what all streams receive, when `strike` comes once all have begun."""
    begun = asyncio.Event(), asyncio.Event()
    streams = asyncio.gather(grpc_streams(begun[0]), http_streams(begun[1]))
    await asyncio.gather(*(event.wait() for event in begun))
    if strike is not None:
        await asyncio.to_thread(strike)
    return await streams


def kill_a_decode_worker() -> None:
    run("docker", "kill", container("decode-1"))


def pause_a_decode_worker() -> None:
    run("docker", "pause", container("decode-2"))
    run("sleep", "8")
    run("docker", "unpause", container("decode-2"))


def cut_a_prefill_worker_off() -> None:
    run("docker", "network", "disconnect", "baton_default", container("prefill-1"))


def restart_redis() -> None:
    run("docker", "restart", "--time", "0", container("redis"))


def replace_the_workers() -> None:
    """Replace one container after another, as after the build of a new image: each drains first."""
    for worker in ("prefill-1", "prefill-2", "decode-1", "decode-2"):
        compose(
            "up", "--detach", "--no-build", "--no-deps", "--force-recreate", "--wait", worker, timeout_s=300.0
        )


def mend() -> None:
    """Bring the fleet back to what the file says."""
    # A container that was cut off does not rejoin its network by itself.
    compose("rm", "--stop", "--force", "prefill-1")
    compose("up", "--detach", "--no-build", "--wait", timeout_s=600.0)


STRIKES = (
    kill_a_decode_worker,
    pause_a_decode_worker,
    cut_a_prefill_worker_off,
    restart_redis,
    replace_the_workers,
)


async def test_streams_are_the_same_whatever_befalls_containers(fleet: None) -> None:
    undisturbed = await under(None)
    assert all(len(tokens) == NUM_TOKENS for tokens in undisturbed[0])
    for strike in STRIKES:
        disturbed = await under(strike)
        assert disturbed == undisturbed, strike.__name__
        await asyncio.to_thread(mend)


def test_containers_are_confined(fleet: None) -> None:
    services = compose("ps", "--all", "--services").split()
    assert set(services) >= {"redis", "router", "gateway", "prefill-1", "decode-1"}
    for service in services:
        (found,) = json.loads(run("docker", "inspect", container(service)))
        assert found["HostConfig"]["ReadonlyRootfs"], service
        assert found["HostConfig"]["CapDrop"] == ["ALL"], service
        assert found["Config"]["User"].split(":")[0] not in ("", "0", "root"), service


@pytest.mark.parametrize("image", sorted(BUDGETS_MB))
def test_images_are_small_and_list_what_they_hold(images: None, image: str) -> None:
    (found,) = json.loads(run("docker", "image", "inspect", image))
    assert found["Size"] / 1e6 <= BUDGETS_MB[image]
    listed = run_python(image, "import json; print(len(json.load(open('/sbom.cdx.json'))['components']))")
    assert int(listed) > 10
    debian = run_python(image, "import os; print(*os.listdir('/var/lib/dpkg/status.d'))")
    assert "libc6" in debian.split()


def run_python(image: str, program: str) -> str:
    return run("docker", "run", "--rm", "--entrypoint", "/venv/bin/python", image, "-c", program)


def test_an_image_has_no_shell_and_no_package_manager(images: None) -> None:
    program = "import os; print(*(os.path.exists(p) for p in ('/bin/sh', '/usr/bin/apt', '/venv/bin/pip')))"
    answers: Sequence[str] = run_python("baton-router", program).split()
    assert answers == ["False", "False", "False"]
