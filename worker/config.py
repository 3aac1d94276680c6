"""A worker's settings: flags only, checked once, frozen."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.model.quantisation import Quantisation
from kvtransfer.transports import nixl
from kvtransfer.transports.transport import TransportMode
from scheduling.cost.profiles import Profile
from scheduling.policies import DEFAULT, NAMES
from services.profiles import load_timed, names
from services.security.settings import Security, add_security_flags, security_of
from worker.errors import EXIT_CONFIG
from worker.identity import Role

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("json", "console")
DTYPES = ("auto", "float32", "float64", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
MAX_PORT = 65_535
SIZES = {"block_size": 16, "num_blocks": None, "max_num_seqs": 64, "token_budget": 256}
"""What neither a flag nor a profile says."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Validated settings; raises `ValueError` naming the flag, its value and what it accepts."""

    listen: str
    advertise: str
    redis: str
    model: Path
    worker_id: str
    block_size: int
    num_blocks: int | None
    """None: as many as fit into `kv_memory_mb`."""
    kv_memory_mb: int | None
    """None: 256 on a CPU; on a GPU what weights and steps leave."""
    max_num_seqs: int
    token_budget: int
    dtype: str
    device: str
    deterministic: bool
    """The same bits for the same tokens, whoever shares a step; proven at the start."""
    cuda_graphs: bool
    random_weights: int | None
    """The seed that weights are drawn from, for measuring; None: the checkpoint's are read."""
    quantisation: Quantisation
    fusion: bool
    """On a GPU the model's layers are fused, where they fit."""
    threads: int
    policy: str
    timed: Profile | None
    """Steps last what it says instead of computing; with it come its blocks, seats, budget and context."""
    transport: TransportMode
    shm_dir: Path
    metrics_port: int
    drain_s: float
    log_level: str
    log_format: str
    security: Security
    cache: Path
    """Where this user's programs keep what they can make again."""

    def __post_init__(self) -> None:
        for flag, address in (("--listen", self.listen), ("--advertise", self.advertise)):
            host, _, port = address.rpartition(":")
            if address and not (host and port.isdigit() and int(port) <= MAX_PORT):
                raise ValueError(f"{flag} is {address!r}; accepted: HOST:PORT with a port of 0 to {MAX_PORT}")
        for flag, value, low in (
            ("--block-size", self.block_size, 1),
            ("--num-blocks", 1 if self.num_blocks is None else self.num_blocks, 1),
            ("--kv-memory-mb", 1 if self.kv_memory_mb is None else self.kv_memory_mb, 1),
            ("--max-num-seqs", self.max_num_seqs, 1),
            ("--token-budget", self.token_budget, 1),
            ("--threads", self.threads, 0),
            ("--metrics-port", self.metrics_port, 0),
            ("--drain-s", self.drain_s, 0),
        ):
            if value < low:
                raise ValueError(f"{flag} is {value}; accepted: {low} or more")
        if self.metrics_port > MAX_PORT:
            raise ValueError(f"--metrics-port is {self.metrics_port}; accepted: 0 to {MAX_PORT}")
        if not self.worker_id or not self.worker_id.isprintable() or set(self.worker_id) & set(" :"):
            raise ValueError(
                f"--worker-id is {self.worker_id!r}; accepted: printable characters without space or colon"
            )
        self.security.check_listen(self.listen)
        self.security.check_redis(self.redis)
        if self.deterministic and self.timed is not None:
            raise ValueError("--deterministic is set with --timed; accepted: a worker that computes")
        self._check_quantisation()
        if "://" not in self.redis:
            raise ValueError(f"--redis is {self.redis!r}; accepted: a URL such as redis://127.0.0.1:6379/0")
        if self.transport is TransportMode.NIXL and not nixl.is_installed():
            raise ValueError("--transport is nixl, which is not installed; accepted: auto, shm or grpc")
        if self.transport is TransportMode.CUDA_IPC and (self.device == "cpu" or self.timed is not None):
            raise ValueError("--transport is cuda_ipc without a GPU; accepted: auto, shm, nixl or grpc")
        needs_sockets = self.transport in (TransportMode.AUTO, TransportMode.SHM)
        if needs_sockets and not self.shm_dir.is_dir():
            raise ValueError(
                f"--shm-dir is {str(self.shm_dir)!r}; accepted: a directory that exists, or --transport grpc"
            )

    def _check_quantisation(self) -> None:
        if self.quantisation is Quantisation.NONE:
            return
        chosen = f"--quantisation is {self.quantisation.value}"
        if self.timed is not None:
            raise ValueError(f"{chosen} with --timed; accepted: none, since nothing is computed")
        if self.dtype == "float64":
            raise ValueError(f"{chosen} with --dtype float64; accepted: auto, float32 or bfloat16")

    @property
    def host(self) -> str:
        """Where it listens, without the port."""
        return self.listen.rpartition(":")[0]


def config_of_process(role: Role) -> WorkerConfig:
    """This process's own settings; what is wrong with them ends it, with code 2 and one sentence."""
    try:
        return parse_config(sys.argv[1:], role.value, os.getpid())
    except ValueError as error:
        print(error, file=sys.stderr)  # noqa: T201 - one sentence for a person, instead of a traceback
        sys.exit(EXIT_CONFIG)


def parse_config(argv: Sequence[str], role: str, process_id: int) -> WorkerConfig:
    """Settings from flags; raises `ValueError`, and leaves with code 2 on unknown flags."""
    parser = argparse.ArgumentParser(prog=f"python -m {role}_worker", description=f"Baton's {role} worker.")
    add = parser.add_argument
    add(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="TCP, and UDP for probes; port 0: a free one",
    )
    add("--advertise", default="", metavar="HOST:PORT", help="default: the bound address")
    add("--redis", default="redis://127.0.0.1:6379/0", metavar="URL")
    add("--model", required=True, type=Path, metavar="PATH", help="a checkpoint's directory")
    add("--worker-id", default=f"{role}-{process_id}", metavar="ID")
    add("--block-size", type=int, metavar="TOKENS", help=f"({SIZES['block_size']})")
    add("--num-blocks", type=int, metavar="N", help="default: what --kv-memory-mb holds")
    add("--kv-memory-mb", type=int, metavar="MB", help="(256; on a GPU nine tenths of what is free)")
    add("--max-num-seqs", type=int, metavar="N", help=f"({SIZES['max_num_seqs']})")
    add(
        "--token-budget",
        type=int,
        metavar="TOKENS",
        help=f"most tokens of one step ({SIZES['token_budget']})",
    )
    add("--policy", default=DEFAULT, choices=NAMES, help=f"what a step is made of ({DEFAULT})")
    add(
        "--timed",
        metavar="PROFILE",
        help="compute nothing: steps last what this profile says, which also gives the sizes above; "
        f"one of {', '.join(names())}, or a file",
    )
    add("--dtype", default="auto", choices=DTYPES, help="auto: float32 on a CPU, bfloat16 on a GPU")
    add("--device", default="auto", choices=DEVICES)
    add(
        "--deterministic",
        action="store_true",
        help="the same tokens and log-probabilities whoever shares a step (somewhat slower)",
    )
    add(
        "--no-cuda-graphs",
        dest="cuda_graphs",
        action="store_false",
        help="on a GPU, launch decode steps kernel by kernel instead of replaying them, to debug",
    )
    add(
        "--random-weights",
        type=int,
        metavar="SEED",
        help="draw the weights on the device instead of reading them, for measuring: --model holds "
        "config.json and tokenizer.json",
    )
    add(
        "--quantisation",
        default=Quantisation.NONE.value,
        choices=[choice.value for choice in Quantisation],
        help="what is kept in 8 bits: int8, the weights of linear layers; kv8, keys and values, or kvfp8, "
        "the same as fp8, which is less exact (none)",
    )
    add(
        "--no-fusion",
        dest="fusion",
        action="store_false",
        help="on a GPU, keep the model's own modules instead of fused ones, to debug",
    )
    add("--threads", default=_default_threads(), type=int, metavar="N", help="0: torch's own default")
    add(
        "--transport",
        default="auto",
        choices=[mode.value for mode in TransportMode],
        help="auto: the best that leads there, in the order cuda_ipc, shm, nixl, grpc",
    )
    add("--shm-dir", default=Path("/dev/shm"), type=Path, metavar="PATH", help="for the sockets of shm")  # noqa: S108 - the memory itself has no name
    add("--metrics-port", default=0, type=int, metavar="N", help="0: a free one")
    add("--drain-s", default=20.0, type=float, metavar="S", help="to hand over what runs, on SIGTERM (20)")
    add("--log-level", default="info", choices=LOG_LEVELS)
    add("--log-format", default=LOG_FORMATS[sys.stderr.isatty()], choices=LOG_FORMATS)
    add_security_flags(parser)
    given = vars(parser.parse_args(argv))
    given["security"] = security_of(given)
    given["transport"] = TransportMode(given["transport"])
    given["quantisation"] = Quantisation(given["quantisation"])
    profile = None if given["timed"] is None else load_timed(given["timed"])
    given["timed"] = profile
    for field, default in SIZES.items():
        if given[field] is None:
            given[field] = default if profile is None else getattr(profile, field)
    return WorkerConfig(**given, cache=_cache_folder())


def _cache_folder() -> Path:
    """As the XDG base directory specification has it, by which a relative path counts as none."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "baton"
    try:
        return Path.home() / ".cache" / "baton"
    except RuntimeError:  # a container's user may have no home
        return Path(tempfile.gettempdir()) / "baton"


def _default_threads() -> int:
    # A fleet has at least two workers; torch's default of one thread per core makes each of them slower.
    return max(1, len(os.sched_getaffinity(0)) // 2)
