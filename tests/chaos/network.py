"""A network for each process of a fleet, as if each had its own host: the kernel loses packets between two.

This process keeps the networks open as file descriptors, so nothing is left of them when it ends. Each has
one cable to this process's own network, where the proxies listen, and can reach nothing else. `python -m
tests.chaos.network` ends with 0 where all this can be done, in a network of its own (`apart`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.chaos.links import Way
from tests.zygote import CLONE_NEWNET

HUB = "198.18.0.1"
"""The proxies' host, in the range for tests of devices (RFC 2544)."""
CLIENT = "client"
"""This process, which dials as well."""
_DROPPED = re.compile(r"\[(?P<packets>\d+):\d+\] -A (?P<rule>INPUT .*)")


def apart() -> tuple[str, ...]:
    """Return the command before a command that runs it in a network of its own."""
    return ("unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--net")


def why_not() -> str:
    """Return why processes cannot have networks of their own here; empty if they can."""
    try:
        tried = subprocess.run(
            [*apart(), sys.executable, "-m", __name__],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["no reason given"])[-1]


class Network:
    """Networks with these names, in the network of this process, which must be its own."""

    def __init__(self, names: Sequence[str]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, start=1)}
        self._networks: dict[str, int] = {}
        self._own = -1

    def __enter__(self) -> Self:
        self._own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _ip(self.path(CLIENT), "link set lo up", f"address add {HUB}/32 dev lo")
            for name in self._numbers:
                self._connect(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """With the last process in it, a network ends."""
        for network in (*self._networks.values(), self._own):
            os.close(network)

    def host(self, name: str) -> str:
        """Return the address of a process."""
        return f"198.18.{self._numbers[name]}.2"

    def path(self, name: str) -> str:
        """Return the file of a process's network."""
        return f"/proc/{os.getpid()}/fd/{self._networks.get(name, self._own)}"

    def name(self, host: str, _port: int, _protocol: str) -> str:
        """Return the name of the process with this address."""
        return next((name for name in self._numbers if self.host(name) == host), CLIENT)

    def block(self, caller: str, port: int, ways: Sequence[Way]) -> None:
        """Lose all packets between a caller and this port of the hub, on these ways."""
        for way in ways:
            network, rule = self._rule(caller, port, way)
            self._filter(network, *(f"-A {rule.format(protocol)}" for protocol in ("tcp", "udp")))

    def unblock(self, caller: str, port: int) -> int:
        """Lose no more of them, and return how many were lost."""
        lost = 0
        for way in Way:
            network, rule = self._rule(caller, port, way)
            rules = {rule.format(protocol) for protocol in ("tcp", "udp")}
            found = [
                entry
                for entry in map(_DROPPED.fullmatch, self._filters(network))
                if entry is not None and entry["rule"] in rules
            ]
            lost += sum(int(entry["packets"]) for entry in found)
            self._filter(network, *(f"-D {entry['rule']}" for entry in found))
        return lost

    def _connect(self, name: str) -> None:
        self._networks[name] = _new_network()
        cable, gate = f"chaos{self._numbers[name]}", f"198.18.{self._numbers[name]}.1"
        _ip(
            self.path(CLIENT),
            f"link add {cable} type veth peer name eth0 netns {self.path(name)}",
            f"address add {gate}/24 dev {cable}",
            f"link set {cable} up",
        )
        _ip(
            self.path(name),
            "link set lo up",
            f"address add {self.host(name)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {gate}",
        )

    def _rule(self, caller: str, port: int, way: Way) -> tuple[str, str]:
        """Return the network of the receiver, where packets are lost, and the rule in iptables' own words.

        A rule for packets that leave would tell their sender.
        """
        is_ours = caller == CLIENT
        if way is Way.THERE:
            cable = "lo" if is_ours else f"chaos{self._numbers[caller]}"
            return self.path(CLIENT), f"INPUT -i {cable} -p {{0}} -m {{0}} --dport {port} -j DROP"
        cable = "lo" if is_ours else "eth0"
        return self.path(caller), f"INPUT -i {cable} -p {{0}} -m {{0}} --sport {port} -j DROP"

    def _filter(self, network: str, *rules: str) -> None:
        if rules:
            _run(network, "iptables-restore --noflush", "\n".join(("*filter", *rules, "COMMIT", "")))

    def _filters(self, network: str) -> list[str]:
        return _run(network, "iptables-save -c -t filter").splitlines()


def _new_network() -> int:
    """Return the descriptor of a new network, in which nobody is."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, own)
        if libc.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "no network can be made")
        stack.callback(libc.setns, own, CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _ip(network: str, *commands: str) -> None:
    _run(network, "ip -batch -", "\n".join((*commands, "")))


def _run(network: str, command: str, said: str = "") -> str:
    """Run a program in a network, and return its output. Raises OSError with its error."""
    ran = subprocess.run(
        ["nsenter", f"--net={network}", *command.split()],
        input=said,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise OSError(f"{command}: {ran.stderr.strip()}")
    return ran.stdout


def main() -> int:
    """Return the exit code: 1 with the reason where it cannot be done."""
    try:
        with Network(("somebody",)) as network:
            network.block("somebody", 1, tuple(Way))
            network.unblock("somebody", 1)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
