"""The command that starts a worker: parse the flags, check the environment, report the start, run."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Never

import structlog

from engine.group.links import Link
from engine.starting import Phase
from gguf_model.errors import GgufUnusable
from runtime.checkpoints import Checkpoints
from runtime.hub.apart import FetchFailed
from runtime.hub.contents import Scope
from runtime.hub.refusals import HubRefused
from runtime.process.event_loop import uncollected_imports
from runtime.process.log import configure_logging, say_why
from runtime.process.threads import SWITCH_S
from runtime.security.tls import CertificateRole
from runtime.settings import draw_number
from worker.config import WorkerConfig
from worker.errors import EXIT_CONFIG, EXIT_CRASHED, EXIT_GROUP, EXIT_MODEL, ForeignKernelsError
from worker.place import Place
from worker.process.starting import Start
from worker.role import WorkerRole
from worker.startup.flags import parse_config
from worker.startup.group.followers import Followers, start_followers
from worker.startup.group.gpus import check_number, gpus_for, stay_on_host, take, take_local

if TYPE_CHECKING:  # they load torch
    from engine.group.remote.sums import Connected
    from worker.process.main import Links
    from worker.startup.build_sides import BuildSides
    from worker.startup.group.rendezvous import Members

log = structlog.get_logger()

WAIT_SETTINGS = frozenset({"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"})
"""Environment variables of OpenMP runtimes that say how their threads wait."""
SPINS = 10_000
"""Some tenths of a millisecond, which is longer than a thread waits for another that runs."""

FETCH = "worker.startup.fetch"
"""The program that fetches models of the hub, unless no worker could serve them."""

LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""Environment variable by which torch's allocator uses transparent huge pages."""


def run(role: WorkerRole, build_sides: BuildSides) -> Never:
    """Run this process as a worker until it is drained; exit with the code that says how it ended.

    `build_sides` builds the sides of the handoff that this kind of worker has.
    """
    try:
        config = parse_config(sys.argv[1:], role.value, draw_number())
        check_kernels()
        gpus = _gpus(config)
        config = _with_models(config, role)
    except (ValueError, ForeignKernelsError) as error:
        _leave(EXIT_CONFIG, error)
    except (HubRefused, GgufUnusable) as error:
        _leave(EXIT_MODEL, error)
    except FetchFailed as error:
        sys.exit(error.exit_code)
    configure_logging(config.service.log_level, config.service.log_format, worker=config.worker_id)
    sys.setswitchinterval(SWITCH_S)  # followers inherit it
    followers, members, listener = None, None, None
    if config.num_processes > 1 and config.place is None:
        listener = socket.create_server(("127.0.0.1", 0)) if gpus else None
        # Forked while this process has one thread and has not loaded torch.
        follow = partial(_follow, config, gpus, listener)
        followers = start_followers(config.num_processes, follow, config.processes_flags)
        take(gpus, 0, os.environ)
    shorten_waits(os.environ)
    use_large_pages(os.environ)
    if config.place is not None and config.place.rank:
        _follow_from_afar(config, config.place)
    others_cpu_s = (lambda: 0.0) if followers is None else followers.cpu_s
    start = Start(f"{role.value}_worker", config.worker_id, others_cpu_s)
    if config.place is not None:
        start.report(Phase.GATHERING, 0, config.place.size - 1)
        members = _gather(config, config.place)
    # Imported late: torch takes seconds to load, and a wrong flag should be reported at once.
    with uncollected_imports():
        from worker.process.main import main  # noqa: PLC0415

    links: Links = ()
    if followers is not None:
        links = followers.links if listener is None else _connect_gpus(config, followers, listener)
    elif members is not None:
        links = members.links
    code = EXIT_CRASHED
    try:
        code = main(role, build_sides, config, start, links)
    finally:
        if followers is not None:
            followers.end()
        if members is not None:
            members.end(in_order=code == 0)
    sys.exit(code)


def _with_models(config: WorkerConfig, role: WorkerRole) -> WorkerConfig:
    """Return the settings with the folders of all models, after those of the hub have been fetched."""
    program = (FETCH, *(["--prove-model"] if config.prove_model else []))
    checkpoints = Checkpoints(config.service, f"{role.value}_worker", config.worker_id, program)
    reads_weights = config.timed is None and config.random_weights is None
    service = checkpoints.settings(Scope.ALL if reads_weights else Scope.FACTS)
    draft = config.draft_model and checkpoints.folder(config.draft_model)
    return replace(config, service=service, draft_model=draft)


def _gpus(config: WorkerConfig) -> Sequence[str]:
    """Return the GPUs of the processes of this worker; none for one process, or on a CPU."""
    if config.tensor_parallel == 1 or config.pipeline_parallel > 1:
        return ()
    gpus = gpus_for(config.device, os.environ)
    if config.place is None:
        check_number(gpus, config.tensor_parallel)
    else:
        take_local(gpus, os.environ)
    return gpus


def _follow(
    config: WorkerConfig,
    gpus: Sequence[str],
    listener: socket.socket | None,
    part: tuple[int, int],
    links: Sequence[Link],
) -> int:
    """Run this process as a follower; return its exit code.

    With GPUs its leader has a socket that listens, at whose port they meet.
    """
    shorten_waits(os.environ)
    use_large_pages(os.environ)
    rank, size = part
    take(gpus, rank, os.environ)
    with uncollected_imports():
        from engine.model.parallel.part import Part  # noqa: PLC0415 - see above
        from worker.startup.build import build_follower, device_kind  # noqa: PLC0415
        from worker.startup.group.rendezvous import connect_here  # noqa: PLC0415

    link: Link | Connected = links[0]
    if listener is not None:
        port = listener.getsockname()[1]
        listener.close()
        stay_on_host(os.environ)
        link = connect_here(Part(rank, size), links[:1], links[1:], port, device_kind(config))
    build_follower(config, rank, link)
    return 0


def _connect_gpus(config: WorkerConfig, followers: Followers, listener: socket.socket) -> Connected:
    """Connect this process with its followers, which compute on GPUs; end it if that is impossible."""
    from engine.model.parallel.part import Part  # noqa: PLC0415 - see above
    from worker.startup.build import device_kind  # noqa: PLC0415
    from worker.startup.group.rendezvous import connect_here  # noqa: PLC0415

    stay_on_host(os.environ)
    part, port = Part(0, config.tensor_parallel), listener.getsockname()[1]
    try:
        device = device_kind(config)
        return connect_here(part, followers.links, followers.loads, port, device, listener.detach())
    except ValueError as error:
        _leave(EXIT_CONFIG, error)
    except (OSError, RuntimeError) as error:
        _leave(EXIT_GROUP, f"{config.processes_flags}: its processes do not come together ({error})")


def _gather(config: WorkerConfig, place: Place) -> Members:
    """Connect this process with the others that a cluster has started; end it if that is impossible."""
    with uncollected_imports():
        from worker.startup.build import device_kind  # noqa: PLC0415 - see above
        from worker.startup.group.rendezvous import Members, connect  # noqa: PLC0415

    flag, security = config.processes_flags, config.service.security
    try:
        security.load(CertificateRole.WORKER)  # it names the file that is unusable
        device = device_kind(config)
    except ValueError as error:
        _leave(EXIT_CONFIG, error)
    try:
        return Members(flag, connect(place, security.tls, device))
    except (OSError, RuntimeError) as error:  # those of torch.distributed are RuntimeErrors
        _leave(EXIT_GROUP, f"{flag}: its {place.size} processes do not come together ({error})")


def _leave(code: int, why: object) -> Never:
    say_why(why)
    sys.exit(code)


def _follow_from_afar(config: WorkerConfig, place: Place) -> Never:
    """Run this process as a follower of a leader on another host."""
    members = _gather(config, place)
    with uncollected_imports():
        from worker.startup.build import build_follower  # noqa: PLC0415 - see above

    # The leader decides what a signal to all of them means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    log.info("following", rank=place.rank, leader=place.address)
    is_over = build_follower(config, place.rank, members.links)
    code = 0 if is_over else EXIT_GROUP
    members.end(in_order=is_over)
    if not is_over:
        _leave(code, f"{config.processes_flags}: the leader is gone; its log says why")
    sys.exit(code)


def shorten_waits(environment: MutableMapping[str, str]) -> None:
    """Let threads that wait for each other sleep soon, unless the environment decides it.

    Call it before torch loads. By default, OpenMP's threads spin for some milliseconds at the end of every
    loop. Where something else takes one of their cores, each waits for a thread that cannot run, on the core
    which that thread needs: a step takes twenty times as long. Threads that sleep at once have to be woken in
    every loop, which takes half as long again on an idle machine.
    """
    if WAIT_SETTINGS.isdisjoint(environment):
        environment["GOMP_SPINCOUNT"] = str(SPINS)


def use_large_pages(environment: MutableMapping[str, str]) -> None:
    """Let torch ask for large pages for large tensors, unless the environment decides it.

    Call it before torch loads. A step reads all weights. In pages of 4 KiB the processor looks up where each
    of them is, and waits for it. A system without large pages ignores the wish.
    """
    environment.setdefault(LARGE_PAGES, "1")


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
