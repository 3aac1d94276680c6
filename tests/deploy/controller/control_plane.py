"""etcd, the API server and the controllers of Deployments and ReplicaSets, without any node.

They listen on loopback, and need no root.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.kubernetes.build import BIN, ensure_binaries
from tests.kubernetes.programs import Programs, wait_until
from tests.ports import free_port

CONTROLLER = "controller"
"""The user that the controller acts as; the API server notes each of its calls."""


@dataclass(frozen=True)
class ControlPlane:
    folder: Path
    server: str

    def kubeconfig(self, user: str) -> Path:
        """Return the credentials of a user: `admin`, or `controller`."""
        return self.folder / f"{user}.yaml"

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Return what kubectl prints, as admin."""
        command = (str(BIN / "kubectl"), f"--kubeconfig={self.kubeconfig('admin')}", *arguments)
        ended = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 0, f"{arguments}: {ended.stderr}"
        return ended.stdout

    def calls(self) -> Counter[str]:
        """Return how often the controller has called each verb of each resource."""
        with (self.folder / "audit.log").open() as lines:
            events = [json.loads(line) for line in lines]
        return Counter(
            " ".join([event["verb"], *(event["objectRef"][key] for key in ("resource", "subresource")
                                       if key in event["objectRef"])])
            for event in events
            if "objectRef" in event
        )  # fmt: skip


@contextlib.contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """Yield while the API server serves; everything is written below `folder`."""
    ensure_binaries()
    programs = Programs(folder)
    etcd, peer, port = free_port(), free_port(), free_port()
    plane = ControlPlane(folder, f"https://127.0.0.1:{port}")
    try:
        _write_files(plane)
        programs.start(
            "etcd", "etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level", "warn",
            "--listen-client-urls", f"http://127.0.0.1:{etcd}",
            "--advertise-client-urls", f"http://127.0.0.1:{etcd}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}",
        )  # fmt: skip
        programs.start(
            "apiserver", str(BIN / "kube-apiserver"), "--etcd-servers", f"http://127.0.0.1:{etcd}",
            "--cert-dir", str(folder), "--bind-address=127.0.0.1", "--secure-port", str(port),
            "--endpoint-reconciler-type=none", "--token-auth-file", str(folder / "tokens.csv"),
            "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-signing-key-file", str(folder / "accounts.key"),
            "--service-account-key-file", str(folder / "accounts.key"),
            "--service-cluster-ip-range=10.96.0.0/16",
            "--audit-policy-file", str(folder / "audit.yaml"), "--audit-log-path", str(folder / "audit.log"),
        )  # fmt: skip
        wait_until(f"the API server ({programs.log('apiserver')})", lambda: _serves(plane), 90)
        programs.start(
            "controller-manager", str(BIN / "kube-controller-manager"),
            f"--kubeconfig={plane.kubeconfig('admin')}", "--leader-elect=false", "--port=0",
            f"--secure-port={free_port()}", "--cert-dir", str(folder), "--bind-address=127.0.0.1",
            "--controllers=deployment,replicaset", "--kube-api-qps=500", "--kube-api-burst=500",
        )  # fmt: skip
        yield plane
    finally:
        for name in ("controller-manager", "apiserver", "etcd"):
            programs.stop(name)
        shutil.rmtree(folder / "etcd", ignore_errors=True)


def _write_files(plane: ControlPlane) -> None:
    folder = plane.folder
    subprocess.run(["openssl", "genrsa", "-out", folder / "accounts.key"], check=True, capture_output=True)
    tokens = {"admin": "system:masters", CONTROLLER: "controllers"}
    (folder / "tokens.csv").write_text("".join(f"{u}-token,{u},{u},{group}\n" for u, group in tokens.items()))
    for user in tokens:
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "x", "cluster": {"server": plane.server,
                                                   "certificate-authority": str(folder / "apiserver.crt")}}],
            "users": [{"name": "x", "user": {"token": f"{user}-token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        }  # fmt: skip
        plane.kubeconfig(user).write_text(yaml.safe_dump(config))
    rules = [
        {"level": "Metadata", "users": [CONTROLLER], "omitStages": ["RequestReceived"]},
        {"level": "None"},
    ]
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
    (folder / "audit.yaml").write_text(yaml.safe_dump(policy))
    (folder / "audit.log").touch()


def _serves(plane: ControlPlane) -> bool:
    with contextlib.suppress(OSError):
        context = ssl.create_default_context(cafile=plane.folder / "apiserver.crt")
        asked = urllib.request.Request(
            f"{plane.server}/readyz", headers={"Authorization": "Bearer admin-token"}
        )
        with urllib.request.urlopen(asked, context=context, timeout=5) as answer:
            return bool(answer.status == 200)
    return False
