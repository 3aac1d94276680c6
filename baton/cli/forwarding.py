"""Reach a fleet in a Kubernetes cluster: a port of this machine that kubectl forwards to a router."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

ROUTERS = "app.kubernetes.io/name=baton,app.kubernetes.io/component=router"
"""The labels of the chart's Services of routers."""
_PORT = 50051
_AGAIN_S = 0.5


@contextmanager
def forwarded(args: argparse.Namespace) -> Iterator[None]:
    """Let a command call the fleet of `--context`, if that is given, for as long as it runs.

    Raises `ValueError` with kubectl's own words if it cannot.
    """
    context, namespace = getattr(args, "context", None), getattr(args, "namespace", None)
    if context is None and namespace is None:
        yield
        return
    if args.address or args.run_dir is not None:
        raise ValueError("--context finds a fleet's address; leave out --address and --run-dir")
    named = ("--context", context), ("--namespace", namespace)
    kubectl = ["kubectl", *(part for flag, name in named if name is not None for part in (flag, name))]
    service = _service(kubectl)
    forward = PortForward([*kubectl, "port-forward", "--address", "127.0.0.1", f"service/{service}"])
    where = "the current context" if context is None else f"context {context}"
    print(f"baton: calling the fleet of service {service} in {where}, at {forward.address}", file=sys.stderr)
    args.address = [forward.address]
    try:
        yield
    finally:
        forward.close()


class PortForward:
    """A running `kubectl port-forward`, which is started again when its pod goes. Raises `ValueError`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._closing = threading.Event()
        self._process, self._port = self._start(0)
        self.address = f"127.0.0.1:{self._port}"
        self._thread = threading.Thread(target=self._keep, name="port-forward", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._process.terminate()
        self._thread.join()

    def _keep(self) -> None:
        while True:
            assert self._process.stdout is not None
            with self._process.stdout as output:
                for _ in output:  # kubectl goes on only as long as somebody reads
                    pass
            self._process.wait()
            if self._closing.wait(_AGAIN_S):
                return
            try:
                self._process, _ = self._start(self._port)
            except ValueError:  # no pod yet: the command's own patience ends this
                continue
            if self._closing.is_set():
                self._process.terminate()

    def _start(self, port: int) -> tuple[subprocess.Popen[str], int]:
        """Return kubectl once it listens, and its port; 0 asks for any."""
        process = subprocess.Popen(
            [*self._command, f"{port or ''}:{_PORT}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C is for the command, which ends this
        )
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            if (found := re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", line)) is not None:
                return process, int(found[1])
            said += line
        process.stdout.close()
        process.wait()
        raise ValueError(f"kubectl forwards no port: {said.strip() or 'it said nothing'}")


def _service(kubectl: Sequence[str]) -> str:
    """Return the Service of a fleet's routers. Raises `ValueError` unless there is exactly one."""
    command = [*kubectl, "get", "services", "--selector", ROUTERS, "--output", "json"]
    try:
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        raise ValueError("--context needs kubectl, which is not on the PATH") from None
    if ran.returncode != 0:
        raise ValueError(f"kubectl finds no services: {ran.stderr.strip()}")
    services: list[dict[str, Any]] = json.loads(ran.stdout)["items"]
    names = [each["metadata"]["name"] for each in services if each["spec"].get("clusterIP") != "None"]
    if len(names) != 1:
        raise ValueError(
            f"there are {len(names)} services of routers ({', '.join(names) or 'none'}); accepted: one, "
            "in the namespace that --namespace names"
        )
    return str(names[0])
