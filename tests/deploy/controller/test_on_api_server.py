"""The controller against a real API server, with real controllers of Deployments and ReplicaSets.

Nodes, workers and routers are scripted. Names of tests say what went wrong for users of other projects, whose
public reports their docstrings name.
"""

from __future__ import annotations

import asyncio

import pytest

from baton.operators.v1 import fleet_pb2
from tests.deploy.controller.control_plane import ControlPlane
from tests.deploy.controller.fake_nodes import Fleet, deployment, pool
from tests.deploy.controller.scene import scene, until

pytestmark = pytest.mark.kubernetes


async def test_success_is_not_reported_while_old_pods_serve(plane: ControlPlane) -> None:
    """Reported as dynamo #3567: an upgrade was successful while old pods still served."""
    async with scene(plane) as here:
        await here.apply(deployment("decode", 3), pool("decode", 3))
        await here.start()
        await here.until_settled("decode", 3)
        old = set(await here.live("decode"))
        here.fleet.held = set(old)
        await here.apply(deployment("decode", 3, "v2"))

        async def is_leaving() -> bool:
            return len(old & set(await here.live("decode"))) == 2

        await until("the first old pod is deleted", is_leaving)
        for _ in range(10):  # its drain is held up, so nothing may go on
            ready = await here.ready("decode")
            assert (ready["status"], ready["reason"]) == ("False", "RollingOut")
            assert len(old & set(await here.live("decode"))) == 2
            await asyncio.sleep(0.1)
        (leaving,) = old - set(await here.live("decode"))
        assert leaving in ready["message"]
        here.fleet.held.clear()
        await here.until_settled("decode", 3)
        assert not old & set(here.fleet.workers)


async def test_ready_containers_without_a_routable_worker_replace_nothing(plane: ControlPlane) -> None:
    """Reported as dynamo #13622: everything was Ready, and no worker could be routed to."""
    async with scene(plane, Fleet(unroutable={"v2"})) as here:
        await here.apply(deployment("decode", 2), pool("decode", 2))
        await here.start()
        await here.until_settled("decode", 2)
        old = set(await here.live("decode"))
        await here.apply(deployment("decode", 2, "v2"))

        async def is_held() -> bool:
            new = (await here.live("decode")).keys() - old
            ready = await here.ready("decode")
            return (
                len(new) == 1 and "routers to route to" in ready["message"] and new.pop() in ready["message"]
            )

        await until("the status names the pod that no router routes to", is_held)
        assert old <= set(await here.live("decode"))
        here.fleet.unroutable.clear()
        await here.until_settled("decode", 2)
        assert not old & set(await here.live("decode"))


async def test_an_edit_of_the_pool_restarts_no_worker(plane: ControlPlane) -> None:
    """Reported as dynamo #13353: an edit of one field restarted every decoder."""
    async with scene(plane) as here:
        await here.apply(deployment("decode", 2), pool("decode", 2))
        await here.start()
        await here.until_settled("decode", 2)
        before = set(await here.live("decode"))
        await here.kubectl("scale", "workerpool/decode", "--replicas=4")
        await here.until_settled("decode", 4)
        await here.kubectl("annotate", "workerpool/decode", "note=edited")
        await here.stop()
        await here.kubectl("scale", "workerpool/decode", "--replicas=5")
        await here.start()  # one that remembers nothing
        await here.until_settled("decode", 5)
        assert before < set(await here.live("decode"))


async def test_a_revert_deletes_no_pod_that_it_wants_back(plane: ControlPlane) -> None:
    """Reported as dynamo #13620: a revert deleted the pods that served."""
    async with scene(plane, Fleet(unroutable={"v2"})) as here:
        await here.apply(deployment("decode", 3), pool("decode", 3))
        await here.start()
        await here.until_settled("decode", 3)
        old = set(await here.live("decode"))
        await here.apply(deployment("decode", 3, "v2"))

        async def is_under_way() -> bool:
            ready = await here.ready("decode")
            return ready["reason"] == "RollingOut" and len(await here.live("decode")) == 4

        await until("the rollout has begun", is_under_way)
        await here.apply(deployment("decode", 3))
        await here.until_settled("decode", 3)
        assert set(await here.live("decode")) == old


async def test_routers_drain_a_deleted_pod_whose_worker_hears_nothing(
    plane: ControlPlane,
) -> None:
    """Reported as production-stack #601: requests went to terminating pods."""
    async with scene(plane) as here:
        await here.apply(deployment("decode", 2), pool("decode", 2))
        await here.start()
        await here.until_settled("decode", 2)
        lost = min(await here.live("decode"))
        here.fleet.deaf = {lost}
        await here.kubectl("delete", "pod", lost, "--wait=false")
        drains = await asyncio.gather(*(router.until_heard("Drain") for router in here.routers))
        assert {drain.worker_id for drain in drains} == {lost}
        here.fleet.deaf.clear()
        await here.until_settled("decode", 2)
        assert lost not in here.fleet.workers


async def test_prefill_scales_while_decode_is_stuck(plane: ControlPlane) -> None:
    """Reported as llm-d autoscaling #1213: prefill never scaled."""
    async with scene(plane, Fleet(unroutable={"broken"})) as here:
        await here.apply(deployment("decode", 2), pool("decode", 2))
        await here.apply(deployment("prefill", 1), pool("prefill", 1))
        await here.start()
        await here.until_settled("decode", 2)
        await here.until_settled("prefill", 1)
        await here.apply(deployment("decode", 2, "broken"))
        await here.kubectl("scale", "workerpool/prefill", "--replicas=3")
        await here.until_settled("prefill", 3)
        await here.kubectl("scale", "workerpool/prefill", "--replicas=1")
        await here.until_settled("prefill", 1)
        assert (await here.ready("decode"))["reason"] == "RollingOut"


async def test_a_smaller_pool_waits_for_the_drain_of_its_cheapest_worker(plane: ControlPlane) -> None:
    async with scene(plane) as here:
        await here.apply(deployment("decode", 3), pool("decode", 3))
        await here.start()
        await here.until_settled("decode", 3)
        first, second, third = sorted(here.fleet.workers, key=lambda name: here.fleet.workers[name].tokens)
        here.fleet.held = {first}
        await here.kubectl("scale", "workerpool/decode", "--replicas=1")

        async def first_is_leaving() -> bool:
            return set(await here.live("decode")) == {second, third}

        await until("the cheapest worker's pod is deleted", first_is_leaving)
        for _ in range(10):
            ready = await here.ready("decode")
            assert ready["reason"] == "Scaling"
            assert set(await here.live("decode")) == {second, third}
            await asyncio.sleep(0.1)
        assert f"{first} to hand over" in ready["message"]
        here.fleet.held.clear()
        await here.until_settled("decode", 1)
        assert set(await here.live("decode")) == {third}


async def test_routers_with_different_models_stop_every_step(plane: ControlPlane) -> None:
    async with scene(plane, Fleet(fingerprints=["llama", "qwen"])) as here:
        await here.apply(deployment("decode", 1), pool("decode", 2))
        await here.start()

        async def is_refused() -> bool:
            ready = await here.ready("decode")
            return (
                bool(ready) and ready["reason"] == "MixedFingerprints" and "llama, qwen" in ready["message"]
            )

        await until("the status names both models", is_refused)
        assert (await here.ready("decode"))["reason"] == "MixedFingerprints"
        assert len(await here.live("decode")) == 1
        here.routers[1].answers["Describe"] = fleet_pb2.DescribeResponse(fingerprint="llama")
        await here.until_settled("decode", 2)


async def test_a_deployment_without_the_gate_is_left_alone(plane: ControlPlane) -> None:
    async with scene(plane) as here:
        await here.apply(deployment("decode", 2, gated=False), pool("decode", 1))
        await here.start()

        async def is_refused() -> bool:
            ready = await here.ready("decode")
            return bool(ready) and ready["reason"] == "NoReadinessGate"

        await until("the status says what is missing", is_refused)
        assert len(await here.live("decode")) == 2
        await here.apply(deployment("decode", 2))  # also a rollout, from pods without the gate
        await here.until_settled("decode", 1)
