"""Errors that keep a worker from serving, and commands that it refuses while it does.

WorkerError
├── StartupError             the process ends with `exit_code` and the sentence
│   ├── ForeignKernelsError  another package called `kernels` would be imported
│   ├── ForeignFleetError    the fleet serves other weights or blocks
│   └── GroupLostError       the processes that compute its steps cannot go on
└── MalformedCommandError    a router's command is not valid; `handle` names its sequence, if it has one
"""

from __future__ import annotations

EXIT_CRASHED = 1
EXIT_CONFIG = 2
EXIT_REDIS = 3
EXIT_MODEL = 4
EXIT_FLEET = 5
EXIT_GROUP = 7


class WorkerError(Exception):
    """Root of the tree."""


class StartupError(WorkerError):
    exit_code = EXIT_CONFIG


class ForeignKernelsError(StartupError):
    def __init__(self, distribution: str) -> None:
        super().__init__(
            f"the installed package {distribution} provides a module `kernels`, which Baton has too; "
            f"uninstall it (pip uninstall {distribution}) or use another environment"
        )


class ForeignFleetError(StartupError):
    exit_code = EXIT_FLEET

    def __init__(self, field: str, own: object, others: object, worker_id: str) -> None:
        super().__init__(f"{field} is {own}; the fleet's worker {worker_id} has {others}, accepted: the same")


class GroupLostError(StartupError):
    exit_code = EXIT_GROUP

    def __init__(self, flag: str, reason: BaseException) -> None:
        super().__init__(f"{flag}: {reason}")


class MalformedCommandError(WorkerError):
    def __init__(self, handle: int | None, message: str) -> None:
        super().__init__(message)
        self.handle = handle
