"""Parse the command line, run one command, and turn its errors into one line and an exit code.

Some commands run from a checkout, as the fleet's services do: this process becomes their program. Everything
typed after such a command is its own, `--help` included.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from baton.cli.arguments import PACKAGES, parser
from baton.cli.exits import FAILED, INTERRUPTED, TERMINATED, exit_code_of, explain
from baton.cli.forwarding import forwarded
from baton.errors import BatonError
from baton.fleet.checkout import find_checkout
from baton.fleet.processes.errors import FleetError


def main(arguments: Sequence[str] | None = None) -> int:
    typed = sys.argv[1:] if arguments is None else list(arguments)
    # A shell without job control has its background ignore Ctrl-C: a fleet would stay behind.
    if signal.getsignal(signal.SIGINT) in {signal.SIG_IGN, signal.SIG_DFL}:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = _run(typed)
        sys.stdout.flush()
    except (BatonError, FleetError, ValueError) as error:
        print(f"baton: {explain(error)}", file=sys.stderr)
        return exit_code_of(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except asyncio.CancelledError:
        return TERMINATED
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return code


def _run(typed: Sequence[str]) -> int:
    if typed and typed[0] in PACKAGES:
        return _become(PACKAGES[typed[0]], typed)
    args = parser().parse_args(typed)
    outcome: int | Coroutine[Any, Any, int]
    with forwarded(args):
        outcome = importlib.import_module(f"baton.cli.commands.{args.command}").run(args)
        return outcome if isinstance(outcome, int) else asyncio.run(_watched(outcome))


_RUN = (
    "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Runs a package of the checkout from the folder the user is in, so that paths mean what they say."""


def _become(package: str, typed: Sequence[str]) -> int:
    """Become a package of the checkout. Return only if the checkout lacks it, which is reported."""
    checkout = find_checkout()
    if (checkout / package / "__main__.py").is_file():
        program = [sys.executable, "-c", _RUN, str(checkout), package, *typed]
        os.execv(sys.executable, program)  # noqa: S606 - no shell has to read the arguments
    print(f"baton: {typed[0]} needs {package}/, which is not in the checkout {checkout}", file=sys.stderr)
    return FAILED


async def _watched(command: Coroutine[Any, Any, int]) -> int:
    """Let SIGTERM and the end of the terminal cancel a command as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        shown = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]
        loop.add_signal_handler(signal.SIGHUP, _leave_terminal, task, shown)
    return await command


def _leave_terminal(task: asyncio.Task[int], shown: Sequence[int]) -> None:
    """Cancel a command whose terminal, which has these descriptors, was closed: writing there is an error."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in shown:
        os.dup2(nothing, descriptor)
    os.close(nothing)
    task.cancel()
