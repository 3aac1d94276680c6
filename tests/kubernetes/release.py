"""One release of the chart: what helm does to it, and what its pods do."""

from __future__ import annotations

import json
import re
import ssl
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import yaml

from baton.security.secret_files import Certificates
from tests.kubernetes.build import ROOT
from tests.kubernetes.images import FIRST, IMAGES
from tests.kubernetes.load import Doors
from tests.kubernetes.node import KUBECONFIG, kubectl, run
from tests.kubernetes.programs import wait_until

CHART = ROOT / "deploy/helm/baton"
HELM = ROOT / ".venv-helm/bin/helm"
READY_S = 300.0
TOKENS = {
    "router": "baton_relayed_tokens_total",
    "gateway": "baton_http_relayed_tokens_total",
    "worker": "baton_output_tokens_total",
}
"""The tokens that a pod has sent on, by its component."""

Values = Mapping[str, Any]


def images(tag: str) -> Values:
    """Return the values that name one version of every image."""
    parts = {dockerfile: {"tag": tag} for dockerfile in IMAGES.values()}
    return {"images": {"pullPolicy": "Never", **parts}}


def merged(*values: Values) -> dict[str, Any]:
    """Return values as helm merges them: later ones win, maps are merged."""
    result: dict[str, Any] = {}
    for layer in values:
        for key, value in layer.items():
            inner = result.get(key)
            if isinstance(value, Mapping) and isinstance(inner, Mapping):
                result[key] = merged(inner, value)
            else:
                result[key] = value
    return result


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the API server knows it."""

    name: str
    component: str
    pool: str
    address: str
    is_ready: bool
    is_leaving: bool
    image: str
    containers: Sequence[str]
    """Ids of the running ones."""
    tls: ssl.SSLContext | None = None
    """With what its metrics are read, if the fleet has certificates."""

    @property
    def tokens(self) -> float:
        """The tokens that it has sent on since its start."""
        url = f"{'https' if self.tls else 'http'}://{self.address}:9100/metrics"
        with urllib.request.urlopen(url, timeout=10, context=self.tls) as response:
            text = response.read().decode()
        values = re.findall(rf"^{TOKENS[self.component]}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, values))


class Release:
    """A release called `baton` in a namespace of its own; `certificates` are those of its fleet."""

    def __init__(self, namespace: str, values: Values, certificates: Certificates | None = None) -> None:
        self.namespace, self._values, self._certificates = namespace, values, certificates
        self._tls = None if certificates is None else _scraping(certificates)

    def upgrade(self, *changes: Values, wait: bool = True) -> None:
        """Install or upgrade to the release's values with changes; wait until all is rolled out."""
        text = yaml.safe_dump(merged(self._values, *changes))
        # The server-side apply of Kubernetes 1.20 knows no default for the protocol of a port.
        self.helm(
            "upgrade", "--install", "--server-side=false", "baton", str(CHART), "--values=-", stdin=text
        )
        if wait:
            self.wait_until_rolled_out()

    def rollback(self) -> None:
        """Go back to the revision before, and wait until that is rolled out."""
        self.helm("rollback", "baton")
        self.wait_until_rolled_out()

    def try_in_vain(self, values: Values, said: str) -> str:
        """Upgrade to values that cannot work; return what helm or the status says, `said` included.

        Raise unless every pod that serves still does. Afterwards the release is as before.
        """
        serving = {pod.name for pod in self.pods() if pod.is_ready}
        seen: list[str] = []

        def seen_status() -> str:
            seen.append(self.status())
            return seen[-1]

        try:
            self.upgrade(images(FIRST), values, wait=False)
        except RuntimeError as refused:
            return str(refused)
        try:
            # A container that is started again has other last words.
            wait_until(f"the status says {said!r}", lambda: said in seen_status(), 180.0)
            still = {pod.name for pod in self.pods() if pod.is_ready and not pod.is_leaving}
            assert serving <= still
            return seen[-1]
        finally:
            self.rollback()

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """Return what a helm command prints; raise with its errors if it fails."""
        where = f"--kubeconfig={KUBECONFIG}", f"--namespace={self.namespace}"
        return run(str(HELM), *where, *arguments, stdin=stdin, timeout_s=READY_S)

    def kubectl(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """Return what a kubectl command prints in the namespace."""
        return kubectl(f"--namespace={self.namespace}", *arguments, timeout_s=timeout_s)

    def wait_until_rolled_out(self) -> None:
        """Wait until every pod is of the newest kind and ready, and no older one is left."""
        for kind in self.kubectl("get", "deployments,statefulsets", "--output=name").split():
            self.kubectl("rollout", "status", kind, f"--timeout={READY_S:.0f}s", timeout_s=READY_S + 10)
        wait_until("no pod is leaving", lambda: not any(pod.is_leaving for pod in self.pods()), READY_S)

    def pods(self, component: str = "", pool: str = "") -> list[Pod]:
        """Return the pods that exist, of one component or pool."""
        listed = json.loads(self.kubectl("get", "pods", "--output=json"))["items"]
        pods = [_pod(item, self._tls) for item in listed]
        return [pod for pod in pods if component in ("", pod.component) and pool in ("", pod.pool)]

    def streaming(self, component: str, pool: str = "") -> Pod:
        """Return a pod that streams now: it sends tokens on while it is watched."""
        found: list[Pod] = []

        def look() -> bool:
            pods = [pod for pod in self.pods(component, pool) if pod.is_ready and not pod.is_leaving]
            before = {pod.name: pod.tokens for pod in pods}
            found.extend(pod for pod in pods if before[pod.name] > 0 and pod.tokens > before[pod.name])
            return bool(found)

        wait_until(f"a {pool or component} pod streams", look, 180.0)
        return found[0]

    def doors(self) -> Doors:
        """Return the release's doors, which are NodePorts."""
        return Doors(self._port("router"), self._port("gateway"), "demo_model", self._certificates)

    def _port(self, name: str) -> int:
        return int(
            self.kubectl("get", "service", f"baton-{name}", "--output=jsonpath={.spec.ports[0].nodePort}")
        )

    def status(self) -> str:
        """Return what a person would look at: pods, their events, and the last words of what failed."""
        pods = self.kubectl("get", "pods")
        events = self.kubectl(
            "get", "events", "--sort-by=.lastTimestamp", "--output=custom-columns=:.message"
        )
        return "\n".join([pods, events, *self._last_words()])

    def _last_words(self) -> Iterator[str]:
        for pod in self.pods():
            if not pod.is_ready and not pod.is_leaving:
                # Refused while the container is yet to be made.
                with suppress(RuntimeError):
                    yield self.kubectl("logs", pod.name, "--tail=10")


def _scraping(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.ca)
    context.check_hostname = False  # certificates do not name the addresses of pods
    context.load_cert_chain(certificates.cert("client"), certificates.key("client"))
    return context


def _pod(item: Mapping[str, Any], tls: ssl.SSLContext | None) -> Pod:
    labels = item["metadata"]["labels"]
    status = item["status"]
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions", ())}
    containers = status.get("containerStatuses", ())
    return Pod(
        name=item["metadata"]["name"],
        component=labels.get("app.kubernetes.io/component", ""),
        pool=labels.get("baton/pool", ""),
        address=status.get("podIP", ""),
        is_ready=conditions.get("Ready") == "True",
        is_leaving="deletionTimestamp" in item["metadata"],
        image=item["spec"]["containers"][0]["image"],
        containers=[
            found["containerID"].removeprefix("docker://")
            for found in containers
            if "running" in found["state"]
        ],
        tls=tls,
    )


@contextmanager
def release(
    namespace: str, values: Values, manifests: str = "", certificates: Certificates | None = None
) -> Iterator[Release]:
    """Yield an installed release that serves, with other objects in its namespace; remove all afterwards."""
    kubectl("create", "namespace", namespace)
    made = Release(namespace, values, certificates)
    try:
        if manifests:
            kubectl("apply", f"--namespace={namespace}", "--filename=-", stdin=manifests)
        made.upgrade(images(FIRST))
        yield made
    finally:
        # A namespace with pods in it is looked at again only after half of their longest grace, 166 s here.
        everything = "deployments,statefulsets", "--all", "--cascade=foreground", "--timeout=120s"
        made.kubectl("delete", *everything, timeout_s=130.0)
        kubectl("delete", "namespace", namespace, "--timeout=120s", timeout_s=130.0)
