"""A process that has imported what services import and forks one when it is asked: a death costs no start.

`python -m tests.zygote FD` speaks over the socket FD, one datagram for each service: a JSON `Order` with five
descriptors: its stdin, its stdout, its stderr, a pipe to register its id in, and one that receives its id and
at its end its exit code, a line each. When the socket closes, all of them are killed.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import site
import socket
import sys
import threading
from dataclasses import asdict, dataclass
from typing import Never

WARM = (
    "worker.startup.build",
    "worker.startup.flags",
    "worker.process.main",
    "router.intake.preprocessor",
    "router.api.service",
    "router.links.shell",
    "router.api.fleet_service",
    "grpc_reflection.v1alpha.reflection",
    "transformers.models.llama.modeling_llama",
    "gateway.app",
    "uvicorn",
)
"""Modules that take time to import; importing them starts no thread, so forking is safe."""
MOST_BYTES = 65536
CLONE_NEWNET = 0x40000000
NETWORK = "BATON_TESTS_NETWORK"
"""In an order's environment: the file of the network in which the service runs, if not in the zygote's."""


@dataclass(frozen=True, slots=True)
class Order:
    """`python -m module arguments`, in a folder."""

    module: str
    arguments: tuple[str, ...]
    cwd: str
    environment: dict[str, str]

    def send(self, to: socket.socket, fds: tuple[int, int, int, int, int]) -> None:
        """The descriptors stay the caller's."""
        packed = array.array("i", fds)
        to.sendmsg([json.dumps(asdict(self)).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)])


def serve(control: socket.socket) -> Order | None:
    """Forks for each order: returns it in the child, which is to become it; None when no more will come."""
    watch = selectors.DefaultSelector()
    watch.register(control, selectors.EVENT_READ)
    children: dict[int, tuple[int, int]] = {}
    while True:
        for key, _ in watch.select():
            if key.fileobj is not control:
                watch.unregister(key.fd)
                _bury(key.fd, *children.pop(key.fd))
                continue
            data, fds, _, _ = socket.recv_fds(control, MOST_BYTES, 5)
            if not data:
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGKILL)
                return None
            pid = os.fork()
            if pid == 0:
                watch.close()
                control.close()
                for pidfd, (_, status) in children.items():
                    os.close(pidfd)
                    os.close(status)
                _take_over(fds)
                order = json.loads(data)
                return Order(**order | {"arguments": tuple(order["arguments"])})
            for fd in fds[:4]:
                os.close(fd)
            os.write(fds[4], f"{pid}\n".encode())
            pidfd = os.pidfd_open(pid)
            children[pidfd] = pid, fds[4]
            watch.register(pidfd, selectors.EVENT_READ)


def _bury(pidfd: int, pid: int, status: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, f"{code}\n".encode())
    os.close(status)
    os.close(pidfd)


def _take_over(fds: list[int]) -> None:
    stdin, stdout, stderr, register, _ = fds
    os.setsid()
    os.write(register, f"+{os.getpid()}\n".encode())
    for number, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)


def _become(order: Order) -> Never:
    """Run the service, then end as an interpreter does, but leave its modules to the kernel.

    To free what all of them hold takes half a second or more, since each page has to be copied first.
    """
    os.chdir(order.cwd)
    os.environ.update(order.environment)
    if NETWORK in order.environment:
        _enter_network(order.environment[NETWORK])
    _customise(order.environment.get("PYTHONPATH", ""))
    sys.argv = [order.module, *order.arguments]
    code = 0
    try:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:  # of other exceptions, let the interpreter tell
        code = _exit_code(end)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _enter_network(path: str) -> None:
    network = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"the network {path} cannot be entered")
    os.close(network)


def _customise(path: str) -> None:
    """Do what an interpreter does with PYTHONPATH: its folders come first, and may have a `sitecustomize`."""
    if path:
        sys.path[1:1] = path.split(os.pathsep)
        sys.modules.pop("sitecustomize", None)
        site.execsitecustomize()


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def main() -> None:
    """Until the socket closes; in a child, until its service ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    control = socket.socket(fileno=int(sys.argv[1]))
    # Not imported above: copies of parts of the checkout, which fork nothing, have this file and no workers.
    command = importlib.import_module("worker.process.command")
    command.shorten_waits(os.environ)  # torch, which is about to load, keeps what it finds here
    for name in WARM:
        importlib.import_module(name)
    # The first model that is loaded makes transformers compile hundreds of patterns, whichever model it is.
    importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("llama")
    gc.freeze()  # or the first collection of each child would copy all that it shares with this one
    order = serve(control)
    if order is not None:
        _become(order)


if __name__ == "__main__":
    main()
