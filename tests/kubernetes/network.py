"""The node's network: addresses that exist on this machine alone, and the way back to what was there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

NODE_ADDRESS = "10.99.0.1"
"""On a bridge without ports: kubelet refuses a loopback address."""
POD_ADDRESSES = "10.244.0.0/24"
SERVICE_ADDRESSES = "10.96.0.0/16"
NODE_LINK, POD_LINK = "baton-node", "baton-pods"
SYSCTLS = (
    "vm.overcommit_memory", "vm.panic_on_oom", "kernel.panic", "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys", "kernel.keys.root_maxbytes", "net.ipv4.ip_forward",
    "net.ipv4.conf.all.route_localnet", "net.bridge.bridge-nf-call-iptables",
)  # fmt: skip
"""Settings of the whole machine that kubelet and kube-proxy change."""


def make(folder: Path) -> None:
    """Make the node's address and the configuration of the pods' network in `folder`/cni."""
    saved = folder / "sysctls"
    if not saved.exists():
        found = {name: path.read_text().strip() for name in SYSCTLS if (path := _path(name)).exists()}
        saved.write_text(json.dumps(found))
    if not Path("/sys/class/net", NODE_LINK).exists():
        _do("ip", "link", "add", NODE_LINK, "type", "bridge")
        _do("ip", "address", "add", f"{NODE_ADDRESS}/32", "dev", NODE_LINK)
    _do("ip", "link", "set", NODE_LINK, "up")
    _path("net.ipv4.ip_forward").write_text("1")
    bridge = {
        "type": "bridge",
        "bridge": POD_LINK,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(folder / "cni-addresses"),
            "ranges": [[{"subnet": POD_ADDRESSES}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    # `firewall` accepts the pods' traffic where an engine has set FORWARD's policy to DROP.
    # It is why the version is 0.4.0: it knows no older one.
    plugins = [bridge, {"type": "firewall"}, {"type": "portmap", "capabilities": {"portMappings": True}}]
    (folder / "cni").mkdir(exist_ok=True)
    configuration = {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
    (folder / "cni/10-pods.conflist").write_text(json.dumps(configuration))


def remove(folder: Path) -> None:
    """Remove links and rules, and set the machine's settings back."""
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    if "KUBE-" in rules or "CNI-" in rules:
        kept = [line for line in rules.splitlines() if "KUBE-" not in line and "CNI-" not in line]
        subprocess.run(["iptables-restore"], input="\n".join([*kept, ""]), text=True, check=True)
    for link in (POD_LINK, NODE_LINK):
        for port in Path("/sys/class/net", link).glob("brif/*"):
            _delete(port.name)
        _delete(link)
    if (folder / "sysctls").exists():
        for name, value in json.loads((folder / "sysctls").read_text()).items():
            _path(name).write_text(value)


def _delete(link: str) -> None:
    """Delete a link if it is there. The kernel deletes a dead pod's by itself, at any moment."""
    deleted = subprocess.run(["ip", "link", "delete", link], capture_output=True, text=True, check=False)
    if deleted.returncode and Path("/sys/class/net", link).exists():
        raise RuntimeError(f"the link {link} cannot be deleted: {deleted.stderr.strip()}")


def _path(sysctl: str) -> Path:
    return Path("/proc/sys", *sysctl.split("."))


def _do(*command: str) -> None:
    subprocess.run(command, check=True)
