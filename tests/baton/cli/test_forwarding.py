"""`--context`: a fleet in a cluster, through a kubectl that stands for one."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.cli.arguments import parser
from baton.cli.forwarding import PortForward, forwarded
from baton.cli.program import main
from tests.patience import PATIENCE_S

KUBECTL = '''#!{python}
"""Has the services in `services.json`, and forwards ports to `router`, as the cluster of `lab` would."""
import asyncio, pathlib, sys

folder = pathlib.Path({folder!r})
arguments = sys.argv[1:]
with (folder / "asked").open("a") as asked:
    print(*arguments, file=asked)
if arguments[:2] != ["--context", "lab"]:
    sys.exit("error: context was not found")
if "get" in arguments:
    print((folder / "services.json").read_text())
    sys.exit()


async def forward(reader, writer):
    host, port = (folder / "router").read_text().split(":")
    try:
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
    except OSError:
        print("error: lost connection to pod", flush=True)
        loop.stop()
        return
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))


async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


local = int(arguments[-1].partition(":")[0] or 0)
loop = asyncio.new_event_loop()
server = loop.run_until_complete(asyncio.start_server(forward, "127.0.0.1", local))
print(f"Forwarding from 127.0.0.1:{{server.sockets[0].getsockname()[1]}} -> 50051", flush=True)
loop.run_forever()
'''
SERVICE = '{"metadata": {"name": "%s"}, "spec": {"clusterIP": "%s"}}'
ONE = [SERVICE % ("fleet-baton-router", "10.96.0.7"), SERVICE % ("fleet-baton-routers", "None")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files say what the cluster has; `kubectl` is first on the PATH."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable, folder=str(tmp_path)), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    put(tmp_path, ONE)
    return tmp_path


def put(cluster: Path, services: list[str]) -> None:
    (cluster / "services.json").write_text(f'{{"items": [{", ".join(services)}]}}', encoding="utf-8")
    (cluster / "asked").write_text("", encoding="utf-8")


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a program that stands for a router: whoever connects hears a word."""
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "while True:\n    c, _ = s.accept(); c.sendall(b'router'); c.close()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as printed:
        yield f"127.0.0.1:{printed.readline().strip()}"
    process.kill()
    process.wait()


def heard(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
            return connection.recv(100)
    except OSError:
        return b""


def test_a_command_calls_the_service_of_routers_that_it_finds(cluster: Path, echo: str) -> None:
    (cluster / "router").write_text(echo, encoding="utf-8")
    args = parser().parse_args(["status", "--context", "lab", "--namespace", "models"])
    with forwarded(args):
        [address] = args.address
        assert heard(address) == b"router"
    assert heard(address) == b""
    asked = (cluster / "asked").read_text(encoding="utf-8").splitlines()
    assert all(line.startswith("--context lab --namespace models ") for line in asked)
    assert asked[-1].endswith("port-forward --address 127.0.0.1 service/fleet-baton-router :50051")


def test_a_pod_that_is_replaced_is_reached_at_the_same_port(cluster: Path, echo: str) -> None:
    (cluster / "router").write_text("127.0.0.1:1", encoding="utf-8")
    forward = PortForward(["kubectl", "--context", "lab", "port-forward", "service/fleet-baton-router"])
    try:
        assert heard(forward.address) == b""  # kubectl ends with the pod
        (cluster / "router").write_text(echo, encoding="utf-8")
        end = time.monotonic() + PATIENCE_S
        while heard(forward.address) != b"router":
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        forward.close()


@pytest.mark.parametrize(
    ("services", "words", "said"),
    [
        ([], "--context lab", "there are 0 services of routers (none)"),
        ([*ONE, SERVICE % ("other", "10.96.0.8")], "--context lab", "(fleet-baton-router, other)"),
        (ONE, "--context elsewhere", "error: context was not found"),
        (ONE, "--context lab --address a:1", "leave out --address"),
    ],
)
def test_what_is_wrong_is_said(cluster: Path, services: list[str], words: str, said: str) -> None:
    put(cluster, services)
    with pytest.raises(ValueError, match=re.escape(said)):
        forwarded(parser().parse_args(["status", *words.split()])).__enter__()


def test_without_kubectl_the_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs kubectl"):
        forwarded(parser().parse_args(["status", "--context", "lab"])).__enter__()


def test_every_command_that_calls_a_fleet_looks_into_the_cluster(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(cluster, [])
    for command in (["status", "--once"], ["generate", "hi"], ["quote", "hi"], ["chat"]):
        assert main([*command, "--context", "lab"]) == 2
        assert "there are 0 services of routers" in capsys.readouterr().err
