"""The processes that compute steps together with this one.

They are forked before this process has a second thread or has loaded torch, and end with it in any case: the
kernel kills them when it dies, and their sockets end when it leaves. If one of them ends first, this process
ends at once, as a step that is under way would wait for it forever.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Never

from engine.group.links import Link
from worker.errors import EXIT_CRASHED, EXIT_GROUP

Follow = Callable[[tuple[int, int], Sequence[Link]], int]
"""Runs a process as the follower (rank, size), over its links to the leader; returns its exit code."""
NUM_LINKS = 2
"""A follower's links: for steps, and for adapters that are loaded meanwhile where that has one of its own."""

_PR_SET_PDEATHSIG = 1


class Followers:
    """The followers of this process, by rank from 1 on; a thread watches them."""

    def __init__(self, flag: str, children: dict[int, tuple[int, Sequence[Link]]]) -> None:
        self._flag = flag
        self._children = children
        self._ending = threading.Lock()
        """Held by the thread that ends the followers, or this process because of one of them."""
        self._pidfds = {os.pidfd_open(pid): rank for rank, (pid, _) in children.items()}
        threading.Thread(target=self._watch, name="followers", daemon=True).start()

    @property
    def links(self) -> list[Link]:
        """Links to the followers for steps, by rank."""
        return [links[0] for _, links in self._children.values()]

    @property
    def loads(self) -> list[Link]:
        """Links to the followers for adapters."""
        return [links[1] for _, links in self._children.values()]

    def cpu_s(self) -> float:
        """Return the seconds that the followers have computed."""
        return sum(map(_cpu_s, (pid for pid, _ in self._children.values())))

    def end(self) -> None:
        """End the followers, which have nothing that others could miss; unless one has ended before."""
        self._ending.acquire()  # for good: the watching thread has nothing more to do
        ended, _, _ = select.select(list(self._pidfds), [], [], 0)
        if ended:
            self._leave(self._pidfds[ended[0]])
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)
        for pid, _ in self._children.values():
            os.waitpid(pid, 0)

    def _watch(self) -> None:
        ended, _, _ = select.select(list(self._pidfds), [], [])
        with self._ending:
            self._leave(self._pidfds[ended[0]])

    def _leave(self, rank: int) -> Never:
        """End this process, as the follower of a rank has ended."""
        pid, _ = self._children[rank]
        how = _outcome(os.waitpid(pid, 0)[1])
        sentence = f"{self._flag}: its process of rank {rank} (pid {pid}) {how}"
        os.write(sys.stderr.fileno(), f"{sentence}; this worker cannot go on without it\n".encode())
        os._exit(EXIT_GROUP)


def start_followers(size: int, follow: Follow, flag: str) -> Followers:
    """Fork the followers of a group of `size` processes, in which this process is the leader.

    `flag` is what asks for them, with its value.

    Call it from the main thread, as the only one of this process: followers die with the thread that forks
    them. In a follower this does not return.
    """
    pairs = {rank: [Link.pair() for _ in range(NUM_LINKS)] for rank in range(1, size)}
    leader_pid = os.getpid()
    children: dict[int, tuple[int, Sequence[Link]]] = {}
    for rank, links in pairs.items():
        pid = os.fork()
        if pid == 0:
            for other, ends in pairs.items():
                for own, theirs in ends:
                    own.close()
                    if other != rank:
                        theirs.close()
            _be_follower(leader_pid, follow, (rank, size), [theirs for _, theirs in links])
        children[rank] = pid, [own for own, _ in links]
    for links in pairs.values():
        for _, theirs in links:
            theirs.close()
    return Followers(flag, children)


def _be_follower(leader_pid: int, follow: Follow, part: tuple[int, int], links: Sequence[Link]) -> None:
    """Run this process, which was just forked, until it ends."""
    code = EXIT_CRASHED
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != leader_pid:  # it died before the kernel was asked
            os._exit(code)
        # The leader decides what a signal to all of them means.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with open(os.devnull, "r+b", buffering=0) as null:  # noqa: PTH123 - stdout is the leader's alone
            os.dup2(null.fileno(), sys.stdout.fileno())
        code = follow(part, links)
    except BaseException:  # noqa: BLE001 - the process's top
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _outcome(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _cpu_s(pid: int) -> float:
    """Return the seconds that a process has computed; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
