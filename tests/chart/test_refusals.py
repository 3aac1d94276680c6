"""Values that contradict each other are refused, by the field's name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.chart.parts import LAPTOP
from tools.lint_chart import Refused, rendered

pytestmark = pytest.mark.helm

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = ["model.inImage=", "model.name=demo/model", f"model.hub.revision={COMMIT}"]
OFF = "redis.builtIn.enabled=false"
CASES = {
    "model.name is missing": ["model.name="],
    "model has no source; accepted: exactly one of inImage, pvc": ["model.inImage="],
    "model has inImage and hostPath; accepted: exactly one": ["model.hostPath=/srv/demo_model"],
    'model.inImage is "/app/other", but model.name is "demo_model"': ["model.inImage=/app/other"],
    'pools.decode.model.name is "llama", but model.name is "demo_model"; accepted: one model in a release': [
        "pools.decode.model.name=llama"
    ],
    "pools.decode.model has pvc and hostPath": [
        "pools.decode.model.pvc.claim=models",
        "pools.decode.model.hostPath=/srv",
    ],
    "router.model has hostPath and image": ["router.model.hostPath=/srv", "router.model.image=models/demo"],
    'model.hub is set, but model.name is "demo_model"; accepted: the model\'s name on the hub, ORG/NAME': [
        "model.inImage=",
        f"model.hub.revision={COMMIT}",
    ],
    'model.inImage is set, but model.name is "demo/model"; accepted: model.hub': ["model.name=demo/model"],
    'pools.decode.model.hostPath is set, but model.name is "demo/model"; accepted: pools.decode.model.hub': [
        *HUB,
        "pools.decode.model.hostPath=/srv/model",
    ],
    f"router.model.hub.revision is {COMMIT[::-1]}, but model.hub.revision is {COMMIT}; accepted: the same": [
        *HUB,
        f"router.model.hub.revision={COMMIT[::-1]}",
    ],
    'pools.decode.model.hub.file is "a.gguf", but model.hub.file is ""; accepted: the same': [
        *HUB,
        f"pools.decode.model.hub.revision={COMMIT}",
        "pools.decode.model.hub.file=a.gguf",
    ],
    "model.hub.cache has claim and hostPath; accepted: one of them": [
        *HUB,
        "model.hub.cache.claim=hub",
        "model.hub.cache.hostPath=/srv/hub",
    ],
    "pools has no pool with role decode": ["pools.decode=null"],
    "pools.gateway has the name of another part": ["pools.gateway.role=decode", "pools.gateway.replicas=1"],
    "pools.decode.flags.quantisation is set, but all workers of a fleet must share it; accepted: fleet": [
        "pools.decode.flags.quantisation=int8"
    ],
    "pools.picker has the name of another part": ["pools.picker.role=decode", "pools.picker.replicas=1"],
    "picker.enabled is set, but gateway.enabled is false": ["picker.enabled=true", "gateway.enabled=false"],
    "picker.inferencePool.enabled is set, but picker.enabled is false": ["picker.inferencePool.enabled=true"],
    "picker.drain.graceSeconds is 330 for picker; accepted: at least 610": [
        "picker.enabled=true",
        "picker.drain.seconds=600",
    ],
    "fleet.flags.dtype is auto, but pools with and without gpu": ["pools.decode.gpu.count=1"],
    "pools.decode.rdma.resource is missing": ["pools.decode.rdma.count=1"],
    "pools.decode.strategy has maxSurge 0 and maxUnavailable 0": [
        "pools.decode.strategy.maxSurge=0",
        "pools.decode.strategy.maxUnavailable=0",
    ],
    "pools.decode.flags.device is cuda, but pools.decode.gpu.count is 0": ["pools.decode.flags.device=cuda"],
    "pools.decode.flags.transport is shm, but pods meet in no folder": [
        "pools.decode.flags.transport=shm",
        "sharedMemory.hostPath=",
    ],
    "pools.decode.kvDisk is set, but its workers are timed": [
        "pools.decode.kvDisk.megabytes=100",
        "fleet.flags.timed=h200-llama-3.1-8b",
    ],
    "pools.decode.flags.transport is cuda_ipc": ["pools.decode.flags.transport=cuda_ipc"],
    "pools.decode.flags.kv-memory-mb is 2048, but pools.decode.resources.limits.memory is 2Gi": [
        "pools.decode.flags.kv-memory-mb=2048"
    ],
    "pools.decode.flags.kv-host-memory-mb is 2048 beside a kv-memory-mb of 0, but": [
        "pools.decode.flags.kv-host-memory-mb=2048"
    ],
    "pools.decode.flags.kv-host-memory-mb is 2048, but pools.decode.resources.limits.memory is 2Gi": [
        "pools.decode.flags.kv-host-memory-mb=2048",
        "pools.decode.gpu.count=1",
    ],
    "pools.decode.flags.kv-host-memory-mb is 100, but its workers are timed": [
        "pools.decode.flags.kv-host-memory-mb=100",
        "fleet.flags.timed=h200-llama-3.1-8b",
    ],
    "gateway.redis.builtIn.maxmemory is 1gb, but gateway.redis.builtIn.resources.limits.memory is 768Mi": [
        "gateway.redis.builtIn.maxmemory=1gb"
    ],
    "drain.graceSeconds is 29 for router; accepted: at least 30": ["drain.graceSeconds=29"],
    "gateway.drain.graceSeconds is 330 for gateway; accepted: at least 610": ["gateway.drain.seconds=600"],
    "pools.decode.drain.graceSeconds is 45 for pools.decode; accepted: at least 65": [
        "pools.decode.drain.seconds=60"
    ],
    "redis.builtIn.enabled and redis.url are set": ["redis.url=redis://elsewhere:6379/0"],
    "redis has no source; accepted: one of redis.builtIn.enabled, redis.url and redis.urlSecret.name": [OFF],
    "redis.url and redis.urlSecret.name are set": [
        OFF,
        "redis.url=redis://elsewhere:6379/0",
        "redis.urlSecret.name=redis",
    ],
    "gateway.redis.builtIn.enabled and gateway.redis.url are set": [
        "gateway.redis.url=redis://elsewhere:6379/0"
    ],
    "redis.url holds a password; accepted: a URL without one": [
        OFF,
        "redis.url=redis://user:hunter2@elsewhere/0",
    ],
    'redis.url is "redis://elsewhere/0", in the clear, but tls.mode is hook': [
        OFF,
        "redis.url=redis://elsewhere/0",
        "tls.mode=hook",
    ],
    "redis.caSecret.name is missing, but redis.url asks for TLS": [OFF, "redis.url=rediss://elsewhere/0"],
    "tls.certManager.issuer.name is missing, but tls.mode is certManager": ["tls.mode=certManager"],
    "tls.certManager.issuer.name is set, but tls.mode is none": ["tls.certManager.issuer.name=ca"],
    "tls.requireClientCertificates is set, but tls.mode is none": ["tls.requireClientCertificates=true"],
    "tls.secrets.gateway is missing, but tls.mode is secrets": ["tls.mode=secrets"],
    "tls.secrets.router is set, but tls.mode is none": ["tls.secrets.router=router"],
    "router.door.secret is set, but tls.mode is none": ["router.door.secret=door"],
    "pools.decode.env[0].value holds HF_TOKEN; accepted: valueFrom": [
        "pools.decode.env[0].name=HF_TOKEN",
        "pools.decode.env[0].value=hf_abc",
    ],
    "gateway.annotations.note holds a private key": ["gateway.annotations.note=-----BEGIN PRIVATE KEY-----"],
    # What the schema says.
    "additional properties 'threadz' not allowed": ["pools.decode.flags.threadz=1"],
    "additional properties 'password' not allowed": ["redis.password=hunter2"],
    "at '/pools/decode/role': value must be one of 'prefill', 'decode'": ["pools.decode.role=both"],
    "at '/router/replicas': minimum: got -1, want 0": ["router.replicas=-1"],
    "at '/router/processes': minimum: got 0, want 1": ["router.processes=0"],
    "at '/tls/mode': value must be one of": ["tls.mode=mutual"],
    "at '/images/worker/digest'": ["images.worker.digest=latest"],
}


@pytest.mark.parametrize("message", CASES)
def test_a_contradiction_is_refused_by_its_name(message: str) -> None:
    with pytest.raises(Refused, match=re.escape(message)):
        rendered(LAPTOP, sets=CASES[message])


def test_a_model_is_asked_for_first() -> None:
    with pytest.raises(Refused, match=r"model\.name is missing"):
        rendered()


@pytest.mark.parametrize(
    ("wanted", "since", "before"), [("PreferClose", "1.31", "1.30"), ("PreferSameZone", "1.34", "1.33")]
)
def test_a_distribution_that_the_cluster_does_not_know_is_refused(
    wanted: str, since: str, before: str
) -> None:
    said = rf"gateway\.service\.trafficDistribution is {wanted}, but .* v{before} .*; accepted: {since} or"
    sets = (f"gateway.service.trafficDistribution={wanted}",)
    with pytest.raises(Refused, match=said):
        rendered(LAPTOP, sets=sets, kubernetes=before)
    assert rendered(LAPTOP, sets=sets, kubernetes=since)


def test_image_volumes_are_refused_where_the_cluster_has_none() -> None:
    model = {"name": "demo_model", "inImage": "", "image": "models/demo:1"}
    values: dict[str, Any] = {"model": model}
    with pytest.raises(Refused, match=r"model\.image is set, but Kubernetes v1\.32 has no image volumes"):
        rendered(LAPTOP, values=values, kubernetes="1.32")
    assert rendered(LAPTOP, values=values, kubernetes="1.35")
