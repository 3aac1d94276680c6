"""The cluster's DNS: dnsmasq, told of Services and their endpoints by a watch of the API server.

Debian has no CoreDNS. Pods ask for NAME.NAMESPACE.svc.cluster.local, which is a Service's address or, if the
Service is headless, that of every ready endpoint. HOSTNAME.NAME.NAMESPACE.svc.cluster.local is the pod of a
StatefulSet. No other name exists, so a test's pods find nothing outside.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tests.kubernetes.network import NODE_ADDRESS
from tests.kubernetes.programs import Programs

DOMAIN = "cluster.local"
KINDS = ("services", "endpoints")
Objects: TypeAlias = Mapping[tuple[str, str], Mapping[str, Any]]
"""Objects of one kind by namespace and name."""


class Names:
    """Serves the names of a cluster from `start` to `stop`."""

    def __init__(self, folder: Path, programs: Programs, kubectl: tuple[str, ...]) -> None:
        self._hosts, self._programs, self._kubectl = folder / "hosts", programs, kubectl
        self._objects: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {kind: {} for kind in KINDS}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the server, then the two watches."""
        self._hosts.write_text("")
        self._programs.start(
            "dnsmasq", "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--user=root",
            "--pid-file", f"--addn-hosts={self._hosts}", "--no-hosts", "--no-resolv", "--local=/#/",
            "--bind-interfaces", f"--listen-address={NODE_ADDRESS}", "--except-interface=lo",
        )  # fmt: skip
        for kind in KINDS:
            threading.Thread(target=self._watch, args=(kind,), daemon=True).start()

    def stop(self) -> None:
        """Stop the server; the watches end with the API server."""
        self._programs.stop("dnsmasq")

    def _watch(self, kind: str) -> None:
        with subprocess.Popen(
            [*self._kubectl, "get", kind, "--all-namespaces", "--watch", "--output-watch-events",
             "--output", "json"],
            stdout=subprocess.PIPE,
            text=True,
        ) as watch:  # fmt: skip
            assert watch.stdout is not None
            for event in events(watch.stdout):
                self._learn(kind, event)

    def _learn(self, kind: str, event: Mapping[str, Any]) -> None:
        found = event["object"]
        key = found["metadata"]["namespace"], found["metadata"]["name"]
        with self._lock:
            if event["type"] == "DELETED":
                self._objects[kind].pop(key, None)
            else:
                self._objects[kind][key] = found
            lines = hosts(self._objects["services"], self._objects["endpoints"])
            text = "".join(f"{address} {name}\n" for name, address in lines)
            if text != self._hosts.read_text():
                self._hosts.write_text(text)
                pid = self._programs.pid("dnsmasq")
                if pid is not None:
                    os.kill(pid, signal.SIGHUP)


def events(lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """Split what `kubectl --watch --output json` prints into its objects, of one line or of several."""
    held = ""
    for line in lines:
        held += line
        if line.rstrip().endswith("}"):
            try:
                event = json.loads(held)
            except ValueError:
                continue
            held = ""
            yield event


def hosts(services: Objects, endpoints: Objects) -> list[tuple[str, str]]:
    """Return names with their addresses, in order; a headless Service has a line for each endpoint."""
    found = []
    for (namespace, name), service in services.items():
        full = f"{name}.{namespace}.svc.{DOMAIN}"
        address = service["spec"].get("clusterIP")
        if address and address != "None":
            found.append((full, address))
            continue
        for subset in endpoints.get((namespace, name), {}).get("subsets") or ():
            ready = list(subset.get("addresses") or ())
            if service["spec"].get("publishNotReadyAddresses"):
                ready += subset.get("notReadyAddresses") or ()
            for endpoint in ready:
                found.append((full, endpoint["ip"]))
                if endpoint.get("hostname"):
                    found.append((f"{endpoint['hostname']}.{full}", endpoint["ip"]))
    return sorted(set(found))
