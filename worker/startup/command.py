"""The command that starts a worker: parse the flags, check the environment, report the start, run."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Never

from engine.group.links import Link
from services.process.event_loop import uncollected_imports
from services.process.log import configure_logging
from worker.config import WorkerConfig
from worker.errors import EXIT_CONFIG, ForeignKernelsError
from worker.role import WorkerRole
from worker.startup.flags import parse_config
from worker.startup.followers import start_followers
from worker.startup.starting import Start

WAIT_SETTINGS = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
"""Environment variables of OpenMP runtimes that say how their threads wait."""
SPINS = 10_000
"""Some tenths of a millisecond, which is longer than a thread waits for another that runs."""


def run(role: WorkerRole) -> Never:
    """Run this process as a worker until it is drained; exit with the code that says how it ended."""
    try:
        config = parse_config(sys.argv[1:], role.value, os.getpid())
        check_kernels()
    except (ValueError, ForeignKernelsError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - one sentence for a person, instead of a traceback
        sys.exit(EXIT_CONFIG)
    configure_logging(config.service.log_level, config.service.log_format, worker=config.worker_id)
    followers = None
    if config.num_processes > 1:
        # Forked while this process has one thread and has not loaded torch.
        followers = start_followers(config.num_processes, partial(_follow, config), config.processes_flags)
    others_cpu_s = (lambda: 0.0) if followers is None else followers.cpu_s
    start = Start(f"{role.value}_worker", config.worker_id, others_cpu_s)
    shorten_waits(os.environ)
    # Imported late: torch takes seconds to load, and a wrong flag should be reported at once.
    with uncollected_imports():
        from worker.main import main  # noqa: PLC0415

    try:
        code = main(role, config, start, followers)
    finally:
        if followers is not None:
            followers.end()
    sys.exit(code)


def _follow(config: WorkerConfig, part: tuple[int, int], link: Link) -> int:
    """Run this process as a follower; return its exit code."""
    shorten_waits(os.environ)
    with uncollected_imports():
        from worker.startup.build import build_follower  # noqa: PLC0415 - see above

    rank, _ = part
    return build_follower(config, rank, link)


def shorten_waits(environment: MutableMapping[str, str]) -> None:
    """Let threads that wait for each other sleep soon, unless the environment decides it.

    Call it before torch loads. By default, OpenMP's threads spin for some milliseconds at the end of every
    loop. Where something else takes one of their cores, each waits for a thread that cannot run, on the core
    which that thread needs: a step takes twenty times as long. Threads that sleep at once have to be woken in
    every loop, which takes half as long again on an idle machine.
    """
    if WAIT_SETTINGS.isdisjoint(environment):
        environment["GOMP_SPINCOUNT"] = str(SPINS)


def check_kernels() -> None:
    """Refuse an environment in which `import kernels` could import another package.

    Hugging Face has a package of that name; whichever is found first would be imported. To list what each
    distribution contains takes a sixth of a second, so that is done only where another one is found.
    """
    own = Path(__file__).resolve().parents[2]
    if not any(_has_kernels(folder) for folder in map(Path, sys.path) if folder.resolve() != own):
        return
    for distribution in metadata.packages_distributions().get("kernels", ()):
        if distribution != "baton":
            raise ForeignKernelsError(distribution)


def _has_kernels(folder: Path) -> bool:
    return (folder / "kernels").is_dir() or (folder / "kernels.py").is_file()
