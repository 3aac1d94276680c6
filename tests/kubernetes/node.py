"""A real single-node Kubernetes 1.20 on this machine: every component as a program, in a folder of its own.

    python -m tests.kubernetes.node         # keeps one until Ctrl-C

It listens on loopback and on a bridge without ports, so nothing of it is reachable from the network. It has
its own Docker engine, whose images stay in the cache; an engine that runs already is left alone. All else is
removed when the node is stopped, and what a killed run left is removed before the next one starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from tests.kubernetes import network
from tests.kubernetes.build import BIN, CACHE, Missing, check_machine, ensure_binaries, timed
from tests.kubernetes.names import DOMAIN, Names
from tests.kubernetes.network import NODE_ADDRESS
from tests.kubernetes.programs import Programs, wait_until

RUN = Path("/run/baton-kubernetes")
"""Fixed, since two nodes on one machine would share their addresses, and short, since it holds sockets."""
KUBECONFIG = RUN / "kubeconfig"
DOCKER_HOST = f"unix://{RUN}/docker.sock"
KUBECTL = str(BIN / "kubectl"), f"--kubeconfig={KUBECONFIG}"
SERVER = f"https://{NODE_ADDRESS}:6443"
NODE = "node1"
ETCD = "http://127.0.0.1:12379"
CLAMPED_RUNC = """#!/bin/sh
# Kubernetes asks for an oom_score_adj of -998, which the kernel refuses to a root without CAP_SYS_RESOURCE.
previous=
for argument in "$@"; do
  [ "$previous" = --bundle ] && sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$argument/config.json"
  previous=$argument
done
exec runc "$@"
"""


def kubectl(*arguments: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
    """Return what a kubectl command prints; raise with its errors if it fails."""
    return run(*KUBECTL, *arguments, stdin=stdin, timeout_s=timeout_s)


def docker(*arguments: str, timeout_s: float = 120.0) -> str:
    """Return what a docker command prints, on the node's own engine."""
    return run("docker", "--host", DOCKER_HOST, *arguments, timeout_s=timeout_s)


def exits(since_s: float) -> dict[str, tuple[int, float]]:
    """Return the exit code and the time of each container that ended since a time of the clock."""
    window = f"--since={since_s:.3f}", f"--until={time.time():.3f}"
    shape = "{{.ID}} {{.Actor.Attributes.exitCode}} {{.TimeNano}}"
    lines = docker("events", *window, "--filter=event=die", f"--format={shape}").splitlines()
    ended = (line.split() for line in lines)
    return {container: (int(code), int(nanoseconds) / 1e9) for container, code, nanoseconds in ended}


def run(*command: str, stdin: str | None = None, timeout_s: float = 120.0) -> str:
    """Return what a command prints; raise with its errors if it fails."""
    ended = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:300]}: {ended.stderr[-4000:] or ended.stdout[-4000:]}")
    return ended.stdout


@contextlib.contextmanager
def node() -> Iterator[None]:
    """Yield while a node is ready: one that runs already, or one that is stopped afterwards."""
    check_machine()
    ensure_binaries()
    with Path("/run/baton-kubernetes.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not _api_is_ready():
                raise Missing("another node is starting or stopping on this machine") from None
            yield
        else:
            with _own_node():
                yield


@contextlib.contextmanager
def _own_node() -> Iterator[None]:
    # A plain kill is an end like Ctrl-C.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    programs = Programs(RUN)
    names = Names(RUN, programs, KUBECTL)
    _stop(programs, names)
    try:
        timed("Start the node", _start, programs, names)
        yield
    finally:
        timed("Stop the node", _stop, programs, names)
        signal.signal(signal.SIGTERM, before)


def _start(programs: Programs, names: Names) -> None:
    RUN.mkdir(mode=0o700)
    network.make(RUN)
    _start_engine(programs)
    _start_control_plane(programs)
    names.start()
    _start_kubelet(programs)
    wait_until("the node is ready", lambda: " Ready " in kubectl("get", "nodes"), 90.0)
    wait_until("the default service account", lambda: "default" in kubectl("get", "serviceaccounts"), 30.0)


def _start_engine(programs: Programs) -> None:
    runtime = RUN / "runc"
    runtime.write_text(CLAMPED_RUNC)
    runtime.chmod(0o755)
    programs.start(
        "dockerd", "dockerd", "--host", DOCKER_HOST, "--data-root", str((CACHE / "docker").resolve()),
        "--exec-root", str(RUN / "docker"), "--pidfile", str(RUN / "docker.pid"), "--bridge", "none",
        "--iptables=false", "--ip-forward=false", "--containerd-namespace", "baton-kubernetes",
        "--containerd-plugins-namespace", "baton-kubernetes-plugins",
        *(() if _has_resource_capability() else ("--add-runtime", f"clamped={runtime}",
                                                 "--default-runtime", "clamped")),
    )  # fmt: skip
    wait_until(f"the engine answers ({programs.log('dockerd')})", _engine_answers, 60.0)
    pack = subprocess.run(["tar", "-C", BIN, "-c", "pause"], capture_output=True, check=True).stdout
    subprocess.run(
        ["docker", "--host", DOCKER_HOST, "import", "--change", 'ENTRYPOINT ["/pause"]', "-", "pause:local"],
        input=pack, capture_output=True, check=True,
    )  # fmt: skip


def _engine_answers() -> bool:
    asked = subprocess.run(["docker", "--host", DOCKER_HOST, "info"], capture_output=True, check=False)
    return asked.returncode == 0


def _has_resource_capability() -> bool:
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("CapEff:"))
    return bool(int(line.split()[1], 16) >> 24 & 1)


def _start_control_plane(programs: Programs) -> None:
    pki = RUN / "pki"
    pki.mkdir(exist_ok=True)
    run("openssl", "genrsa", "-out", str(pki / "accounts.key"), "2048")
    token = secrets.token_hex(16)
    (pki / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    programs.start(
        "etcd", "etcd", "--data-dir", str(RUN / "etcd"), "--unsafe-no-fsync", "--log-level", "warn",
        "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD,
        "--listen-peer-urls", "http://127.0.0.1:12380",
    )  # fmt: skip
    programs.start(
        "apiserver", str(BIN / "kube-apiserver"), "--etcd-servers", ETCD, "--cert-dir", str(pki),
        "--bind-address", NODE_ADDRESS, "--advertise-address", NODE_ADDRESS, "--secure-port", "6443",
        "--token-auth-file", str(pki / "tokens.csv"), "--authorization-mode=RBAC", "--allow-privileged",
        "--service-account-issuer", "https://kubernetes.default.svc",
        "--service-account-signing-key-file", str(pki / "accounts.key"),
        "--service-account-key-file", str(pki / "accounts.key"),
        "--service-cluster-ip-range", network.SERVICE_ADDRESSES, "--endpoint-reconciler-type=lease",
        # Without it `kubectl logs` and `exec` look the node's name up, which no DNS knows.
        "--kubelet-preferred-address-types=InternalIP",
        # A watch, such as that of the names, lasts as long as the node, not half an hour.
        "--min-request-timeout=1000000",
    )  # fmt: skip
    wait_until("the API server's certificate", (pki / "apiserver.crt").exists, 90.0)
    _write_kubeconfig(pki / "apiserver.crt", token)
    wait_until(f"the API server is ready ({programs.log('apiserver')})", _api_is_ready, 90.0)
    programs.start(
        "controller-manager", str(BIN / "kube-controller-manager"), f"--kubeconfig={KUBECONFIG}",
        "--leader-elect=false", "--port=0", "--cert-dir", str(pki), "--bind-address=127.0.0.1",
        "--service-account-private-key-file", str(pki / "accounts.key"),
        "--root-ca-file", str(pki / "apiserver.crt"), "--flex-volume-plugin-dir", str(RUN / "plugins"),
    )  # fmt: skip
    programs.start(
        "scheduler", str(BIN / "kube-scheduler"), f"--kubeconfig={KUBECONFIG}", "--leader-elect=false",
        "--port=0", "--cert-dir", str(pki), "--bind-address=127.0.0.1",
    )  # fmt: skip


def _write_kubeconfig(authority: Path, token: str) -> None:
    cluster = {"server": SERVER, "certificate-authority": str(authority)}
    text = yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
    )
    KUBECONFIG.touch(mode=0o600)
    KUBECONFIG.write_text(text)


def _api_is_ready() -> bool:
    with contextlib.suppress(RuntimeError):
        return kubectl("get", "--raw", "/readyz") == "ok"
    return False


def _start_kubelet(programs: Programs) -> None:
    programs.start(
        "proxy", str(BIN / "kube-proxy"), f"--kubeconfig={KUBECONFIG}", f"--hostname-override={NODE}",
        "--proxy-mode=iptables", f"--cluster-cidr={network.POD_ADDRESSES}",
        # NodePorts are for this machine's own clients; conntrack's settings stay as they are.
        "--nodeport-addresses=127.0.0.0/8", "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
        "--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249",
    )  # fmt: skip
    programs.start(
        "kubelet", str(BIN / "kubelet"), f"--kubeconfig={KUBECONFIG}", f"--hostname-override={NODE}",
        f"--node-ip={NODE_ADDRESS}", f"--address={NODE_ADDRESS}", "--container-runtime=docker",
        f"--docker-endpoint={DOCKER_HOST}", "--network-plugin=cni", "--cni-bin-dir=/usr/lib/cni",
        f"--cni-conf-dir={RUN}/cni", f"--cni-cache-dir={RUN}/cni-cache",
        "--pod-infra-container-image=pause:local", "--cgroup-driver=cgroupfs", "--fail-swap-on=false",
        f"--root-dir={RUN}/kubelet", f"--cert-dir={RUN}/kubelet-pki", f"--volume-plugin-dir={RUN}/plugins",
        f"--experimental-dockershim-root-directory={RUN}/dockershim",
        # Its image collector is off: what it removes cannot be pulled again.
        "--image-gc-high-threshold=100", "--image-gc-low-threshold=99",
        "--eviction-hard=memory.available<100Mi", "--read-only-port=0", "--healthz-bind-address=127.0.0.1",
        f"--cluster-dns={NODE_ADDRESS}", f"--cluster-domain={DOMAIN}",
    )  # fmt: skip


def _stop(programs: Programs, names: Names) -> None:
    """Stop everything that runs, of this run or an earlier one, and take back what it changed."""
    if programs.pid("kubelet") is not None:
        # In order: kubelet unmounts the volumes and has the pods' addresses given back.
        for kinds in ("deployments,statefulsets,daemonsets,jobs,cronjobs,services", "pods"):
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                kubectl("delete", kinds, "--all", "--all-namespaces", "--grace-period=1", "--timeout=60s")
    names.stop()
    for name in (
        "proxy",
        "kubelet",
        "scheduler",
        "controller-manager",
        "apiserver",
        "etcd",
    ):
        # The API server would wait for its watches to end. Nothing of its state is kept.
        programs.stop(name, grace_s=3.0)
    if programs.pid("dockerd") is not None:
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            containers = docker("ps", "--all", "--quiet").split()
            if containers:
                docker("rm", "--force", *containers)
    programs.stop("dockerd")
    _unmount(RUN)
    network.remove(RUN)
    for group in Path("/sys/fs/cgroup").glob("*/kubepods"):
        for inner, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(inner).rmdir()
    # kubelet's own choices, whatever its flags say.
    for folder in ("/var/log/pods", "/var/log/containers", "/var/lib/kubelet/device-plugins", str(RUN)):
        shutil.rmtree(folder, ignore_errors=True)
    Path("/run/dockershim.sock").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        Path("/var/lib/kubelet").rmdir()


def _unmount(folder: Path) -> None:
    """Unmount what is mounted below a folder, the deepest first."""
    mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    for mount in sorted((m for m in mounts if Path(m).is_relative_to(folder)), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=False)


if __name__ == "__main__":
    try:
        with node():
            sys.stderr.write(
                f"export KUBECONFIG={KUBECONFIG} DOCKER_HOST={DOCKER_HOST}; Ctrl-C ends the node\n"
            )
            threading.Event().wait()
    except Missing as missing:
        sys.exit(str(missing))
    except KeyboardInterrupt:
        pass
