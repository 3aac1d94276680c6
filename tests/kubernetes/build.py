"""Kubernetes 1.20 and its pause container, built once from Debian 12's source package into the cache.

No image registry and no download site but Debian's archive is used. The binaries stay in the cache; the
source and Go's own cache, 2 GB, are removed when they are done.

    python -m tests.kubernetes.build
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec

P = ParamSpec("P")
ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "kubernetes"
BIN = CACHE / "bin"
SOURCE = CACHE / "source"
TREE = SOURCE / "gopath/src/k8s.io/kubernetes"
"""A GOPATH: this Kubernetes vendors all its packages and is built without modules."""

VERSION = "v1.20.2"
COMMANDS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
)  # fmt: skip
GO = Path("/usr/lib/go-1.19")
REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
PACKAGES: Mapping[str, Path | str] = {
    "golang-1.19-go": GO / "bin/go",
    "golang-github-modern-go-reflect2-dev": REFLECT2,
    "gcc": "gcc",
    "make": "make",
    "rsync": "rsync",
    "dpkg-dev": "dpkg-source",
    "etcd-server": "etcd",
    "containernetworking-plugins": Path("/usr/lib/cni/bridge"),
    "docker.io": "dockerd",
    "debootstrap": "debootstrap",
    "iptables": "iptables",
    "iproute2": "ip",
    "procps": "sysctl",
    "openssl": "openssl",
    "conntrack": "conntrack",
    "socat": "socat",
    "ethtool": "ethtool",
    "dnsmasq-base": "dnsmasq",
    "curl": "curl",
}
"""Each Debian package that the build and the cluster use, with a file or a command of it."""


class Missing(Exception):
    """Something that the machine has to have."""


def check_machine() -> None:
    """Raise `Missing`, naming all that is missing, unless a cluster can be built and run here."""
    if os.geteuid() != 0:
        raise Missing("a Kubernetes node needs root: it makes network namespaces, mounts and cgroups")
    if not Path("/sys/fs/cgroup/memory").is_dir():
        raise Missing("Kubernetes 1.20 needs cgroup v1; boot with systemd.unified_cgroup_hierarchy=0")
    absent = [name for name, sign in PACKAGES.items() if not _is_there(sign)]
    if absent:
        raise Missing(f"on Debian 12: apt-get install --no-install-recommends {' '.join(absent)}")


def _is_there(sign: Path | str) -> bool:
    return sign.exists() if isinstance(sign, Path) else shutil.which(sign) is not None


def ensure_binaries() -> None:
    """Build what is not in the cache yet; say how long each step takes."""
    if all((BIN / name).exists() for name in (*COMMANDS, "pause")):
        return
    check_machine()
    timed("Fetch the source package (34 MB) and unpack it", fetch)
    timed("Generate conversions, defaults and OpenAPI", generate)
    timed("Compile Kubernetes' six commands", compile_commands)
    compile_pause()
    shutil.rmtree(SOURCE)


def timed(what: str, step: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> None:
    """Run a step; print what it is and how long it took."""
    began_s = time.monotonic()
    step(*arguments, **options)
    sys.stderr.write(f"{time.monotonic() - began_s:6.0f} s  {what}\n")


def fetch() -> None:
    """Fetch the source package from the machine's own mirror, and unpack it."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for folder in ("lists/partial", "cache/archives/partial", "download"):
        (SOURCE / folder).mkdir(parents=True)
    # An apt of its own, on the machine's own mirror: the machine's list often names no source packages.
    (SOURCE / "sources.list").write_text(f"deb-src {_mirror()} bookworm main\n")
    apt = (
        "apt-get", "-qq", "-o", f"Dir::Etc::SourceList={SOURCE}/sources.list",
        "-o", "Dir::Etc::SourceParts=/dev/null", "-o", f"Dir::State::Lists={SOURCE}/lists",
        "-o", f"Dir::Cache={SOURCE}/cache", "-o", "APT::Sandbox::User=root",
    )  # fmt: skip
    _do(*apt, "update")
    _do(*apt, "--download-only", "source", "kubernetes", cwd=SOURCE / "download")
    (description,) = (SOURCE / "download").glob("kubernetes_*.dsc")
    TREE.parent.mkdir(parents=True)
    _do("dpkg-source", "-x", str(description), str(TREE))
    _replace_reflect2()


def _mirror() -> str:
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for line in listed.stdout.splitlines():
        mirror, release = line.split()
        if release == "bookworm":
            return mirror
    raise Missing("apt knows no mirror of Debian 12 (bookworm), which is where Kubernetes 1.20 comes from")


def _replace_reflect2() -> None:
    # The vendored 1.0.1 crashes what Go 1.18 or newer compiles; Debian's own package is 1.0.2.
    vendored = TREE / "vendor/github.com/modern-go/reflect2"
    shutil.rmtree(vendored)
    vendored.mkdir()
    for file in (*REFLECT2.glob("*.go"), *REFLECT2.glob("*.s")):
        if not file.name.endswith("_test.go"):
            shutil.copy(file, vendored)


def generate() -> None:
    """Generate conversions, defaults and OpenAPI, which the package leaves out."""
    _do("make", "--no-print-directory", "--silent", "generated_files", cwd=TREE)


def compile_commands() -> None:
    """Compile Kubernetes' six commands."""
    # Below vendor/: without that the linker finds no such variable and says nothing, and the node calls
    # itself v0.0.0-master.
    variables = [
        f"-X k8s.io/kubernetes/vendor/k8s.io/{package}/version.{name}={value}"
        for package in ("client-go/pkg", "component-base")
        for name, value in (("gitVersion", VERSION), ("gitMajor", "1"), ("gitMinor", "20"))
    ]
    built = SOURCE / "bin"
    built.mkdir(exist_ok=True)
    _do("go", "build", "-o", f"{built}/", "-ldflags", " ".join(["-s", "-w", *variables]),
        *(f"./cmd/{name}" for name in COMMANDS), cwd=TREE)  # fmt: skip
    BIN.mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        (built / name).replace(BIN / name)


def compile_pause() -> None:
    """Compile the program that holds a pod's namespaces."""
    source = TREE / "build/pause/linux/pause.c"
    _do("gcc", "-Os", "-static", "-DVERSION=local", "-o", str(BIN / "pause"), str(source))


def _do(*command: str, cwd: Path = ROOT) -> None:
    environment = {
        **os.environ,
        "PATH": f"{GO}/bin:{os.environ['PATH']}",
        "HOME": str(SOURCE / "home"),
        "GOROOT": str(GO),
        "GOPATH": str(SOURCE / "gopath"),
        "GOCACHE": str(SOURCE / "gocache"),
        "GO111MODULE": "off",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
        "KUBE_GIT_VERSION": VERSION,
        "KUBE_GIT_MAJOR": "1",
        "KUBE_GIT_MINOR": "20",
        "KUBE_GIT_COMMIT": "debian",
        "KUBE_GIT_TREE_STATE": "archive",
    }
    (SOURCE / "home").mkdir(exist_ok=True)
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"{' '.join(command)[:200]}: status {ended.returncode}\n{ended.stdout[-4000:]}")


if __name__ == "__main__":
    ensure_binaries()
