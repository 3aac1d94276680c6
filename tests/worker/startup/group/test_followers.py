"""Followers end with their leader, and the leader with its followers, however either ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from worker.errors import EXIT_GROUP

# A leader with two followers: it writes their ids, and then does what it is told on stdin.
LEADER = """
import os, sys
from worker.startup.group.followers import start_followers

def follow(part, links):
    link = links[0]
    link.send(1, [str(os.getpid()).encode()])
    if sys.argv[1] == "fails" and part[0] == 2:
        raise RuntimeError("a follower's error")
    link.receive()
    return 5 if sys.argv[1] == "returns" else 0

followers = start_followers(3, follow, "--tensor-parallel 3")
links = followers.links
print(*(link.receive().content.decode() for link in links), flush=True)
sys.stdin.readline()
if sys.argv[1] == "returns":
    links[0].close()
    sys.stdin.readline()
followers.end()
"""


@contextmanager
def leader(way: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A leader, and the ids of its followers."""
    process = subprocess.Popen(
        [sys.executable, "-c", LEADER, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        try:
            yield process, [int(word) for word in process.stdout.readline().split()]
        finally:
            process.kill()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def assert_gone(pids: list[int]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < give_up_at, f"{pids} still run"
        time.sleep(0.01)


def test_followers_are_killed_with_their_leader() -> None:
    with leader("stays") as (process, followers):
        assert all(map(is_alive, followers))
        process.kill()
        process.wait()
        assert_gone(followers)


def test_a_leader_that_ends_leaves_nothing_behind() -> None:
    with leader("stays") as (process, followers):
        process.communicate("end\n")
        assert process.returncode == 0
        assert not any(map(is_alive, followers))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_followers_leave_signals_to_their_leader(number: signal.Signals) -> None:
    """A terminal sends Ctrl-C to all processes of a command."""
    with leader("stays") as (process, followers):
        for pid in followers:
            os.kill(pid, number)
        process.communicate("end\n")
        assert process.returncode == 0


@pytest.mark.parametrize("which", [0, 1])
def test_the_leader_ends_with_a_follower_that_is_killed(which: int) -> None:
    with leader("stays") as (process, followers):
        os.kill(followers[which], signal.SIGKILL)
        errors = process.communicate()[1] if process.wait() else ""
        assert process.returncode == EXIT_GROUP
        assert errors == (
            f"--tensor-parallel 3: its process of rank {which + 1} (pid {followers[which]}) was killed by "
            "SIGKILL; this worker cannot go on without it\n"
        )
        assert_gone(followers)


def test_the_error_of_a_follower_is_shown() -> None:
    with leader("fails") as (process, followers):
        errors = process.communicate()[1] if process.wait() else ""
        assert process.returncode == EXIT_GROUP
        assert "RuntimeError: a follower's error" in errors
        assert errors.endswith("ended with code 1; this worker cannot go on without it\n")
        assert_gone(followers)


def test_the_leader_ends_with_a_follower_that_returns() -> None:
    with leader("returns") as (process, followers):
        assert process.stdin is not None
        process.stdin.write("close\n")
        process.stdin.flush()
        errors = process.communicate()[1] if process.wait() else ""
        assert process.returncode == EXIT_GROUP
        assert "rank 1" in errors
        assert "ended with code 5" in errors
        assert_gone(followers)
