"""A worker's settings: flags only, checked once, frozen."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.model.quantised.quantisation import Quantisation
from engine.speculation import Speculation
from kvtransfer.transports import nixl
from kvtransfer.transports.transport import TransportMode
from scheduling.cost.profiles import Profile
from scheduling.policies import DEFAULT, NAMES
from services.process.limits import read_cores
from services.profiles import load_timed, names
from services.settings import ServiceSettings, add_service_flags, check_least, settings_of
from worker.startup.hosts import Place, place_in
from worker.threads import resolve_threads

DTYPES = ("auto", "float32", "float64", "bfloat16")
DEVICES = ("auto", "cpu", "cuda")
WORKERS_PER_HOST = 2
"""A fleet has at least two workers; with a thread per core for each of them, both would be slower."""
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
ADAPTER_NAME_RULE = "1 to 64 letters, digits, dots, underscores and hyphens, the first a letter or digit"
SIZES = {"block_size": 16, "num_blocks": None, "max_num_seqs": 64, "token_budget": 256}
"""Sizes that hold if neither a flag nor a profile sets them."""
KV_DISK_MB = 4096
LORA_MEMORY_MB = 256
LORA_RANK = 16


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Validated settings; raises `ValueError` naming the flag, its value and what it accepts."""

    service: ServiceSettings
    worker_id: str
    block_size: int
    num_blocks: int | None
    """None: as many as fit into `kv_memory_mb`."""
    kv_memory_mb: int | None
    """None: 256 on a CPU; on a GPU what weights and steps leave."""
    kv_disk: Path | None
    """The folder for blocks that leave the pool; None: they are lost."""
    kv_disk_mb: int | None
    """None: KV_DISK_MB, if there is a folder."""
    share_prefixes: bool
    """Whether blocks are lent to other workers, and fetched from them."""
    max_num_seqs: int
    token_budget: int
    dtype: str
    device: str
    deterministic: bool
    """Whether logits are the same bits whatever else is in a step; checked at the start."""
    cuda_graphs: bool
    random_weights: int | None
    """The seed to draw weights from, for measuring; None: the checkpoint's are read."""
    prove_model: bool
    """Whether a model that is not on the list is served, once it is proven."""
    quantisation: Quantisation
    fusion: bool
    """Whether the model's layers are fused on a GPU, where they fit."""
    speculate: Speculation
    draft_model: Path | None
    """The folder of a smaller model, which drafts tokens; None: there is none."""
    lora: tuple[tuple[str, Path], ...]
    """The name of each LoRA adapter, and the folder of its files."""
    lora_dir: Path | None
    """The folder with a folder for each adapter that is loaded when a request asks for it; None: none are."""
    lora_memory_mb: int | None
    """None: LORA_MEMORY_MB, if there is such a folder."""
    lora_rank: int | None
    """None: LORA_RANK, if there is such a folder."""
    tensor_parallel: int
    """The number of processes that compute each layer together."""
    place: Place | None
    """The place of this one among them, if a cluster starts them; None: it starts the others itself."""
    pipeline_parallel: int
    """The number of stages, each of which computes some of the layers, in `tensor_parallel` processes."""
    threads: int
    """The threads of all of them on this host."""
    policy: str
    timed: Profile | None
    """If set, steps compute nothing and last as long as it says; it also gives the sizes."""
    transport: TransportMode
    shm_dir: Path
    cache: Path
    """The folder for files that can be made again."""

    def __post_init__(self) -> None:
        check_least(self, 1, "block_size", "num_blocks", "kv_memory_mb", "max_num_seqs", "token_budget")
        check_least(self, 1, "threads", "kv_disk_mb", "lora_memory_mb", "lora_rank")
        check_least(self, 1, "tensor_parallel", "pipeline_parallel")
        if not self.worker_id or not self.worker_id.isprintable() or set(self.worker_id) & set(" :"):
            raise ValueError(
                f"--worker-id is {self.worker_id!r}; accepted: printable characters without space or colon"
            )
        if self.timed is not None:
            self._check_computes_nothing()
        if self.quantisation is not Quantisation.NONE and self.dtype == "float64":
            chosen = f"--quantisation is {self.quantisation.value}"
            raise ValueError(f"{chosen} with --dtype float64; accepted: auto, float32 or bfloat16")
        self._check_lora()
        self._check_processes()
        if self.kv_disk_mb is not None and self.kv_disk is None:
            raise ValueError(
                f"--kv-disk-mb is {self.kv_disk_mb} without --kv-disk; accepted: both, or neither"
            )
        if self.transport is TransportMode.NIXL and not nixl.is_installed():
            raise ValueError("--transport is nixl, which is not installed; accepted: auto, shm or grpc")
        if self.transport is TransportMode.CUDA_IPC and (self.device == "cpu" or self.timed is not None):
            raise ValueError("--transport is cuda_ipc without a GPU; accepted: auto, shm, nixl or grpc")
        needs_sockets = self.transport in (TransportMode.AUTO, TransportMode.SHM)
        if needs_sockets and not self.shm_dir.is_dir():
            raise ValueError(
                f"--shm-dir is {str(self.shm_dir)!r}; accepted: a directory that exists, or --transport grpc"
            )

    @property
    def num_processes(self) -> int:
        """The number of processes that compute the steps."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def threads_each(self) -> int:
        """The threads of each process."""
        return self.threads if self.place is not None else self.threads // self.num_processes

    @property
    def processes_flags(self) -> str:
        """The flags that ask for several processes, with their values."""
        return " ".join(f"{flag} {number}" for flag, number in self._processes)

    @property
    def _processes(self) -> list[tuple[str, int]]:
        asked = (("--tensor-parallel", self.tensor_parallel), ("--pipeline-parallel", self.pipeline_parallel))
        return [(flag, number) for flag, number in asked if number > 1]

    @property
    def _chosen_processes(self) -> str:
        return " and ".join(f"{flag} is {number}" for flag, number in self._processes)

    def _check_lora(self) -> None:
        self._check_lora_dir()
        if not self.lora:
            return
        if self.deterministic:
            raise ValueError("--lora is set with --deterministic; accepted: one of the two")
        names = [name for name, _ in self.lora]
        for name in names:
            if not ADAPTER_NAME.fullmatch(name):
                raise ValueError(f"--lora has the name {name!r}; accepted: {ADAPTER_NAME_RULE}")
            if names.count(name) > 1:
                raise ValueError(f"--lora has the name {name!r} twice; accepted: each name once")

    def _check_lora_dir(self) -> None:
        if self.lora_dir is None:
            for field in ("lora_memory_mb", "lora_rank"):
                if (value := getattr(self, field)) is not None:
                    flag = f"--{field.replace('_', '-')}"
                    raise ValueError(f"{flag} is {value} without --lora-dir; accepted: both, or neither")
            return
        chosen = f"--lora-dir is {str(self.lora_dir)!r}"
        if not self.lora_dir.is_dir():
            raise ValueError(f"{chosen}; accepted: a folder that exists")
        for field in ("lora", "deterministic"):
            if getattr(self, field):
                raise ValueError(f"{chosen} with --{field}; accepted: one of the two")

    def _check_processes(self) -> None:
        """Raise ValueError for flags that do not fit a worker of several processes."""
        if self.num_processes == 1:
            return
        chosen = self._chosen_processes
        if self.device == "cuda":
            raise ValueError(f"{chosen} with --device cuda; accepted: a worker on a CPU")
        for field in ("deterministic", "prove_model", "draft_model"):
            if getattr(self, field):
                raise ValueError(f"{chosen} with --{field.replace('_', '-')}; accepted: one of the two")
        if self.pipeline_parallel > 1 and self.speculate is not Speculation.NONE:
            chosen = f"--pipeline-parallel is {self.pipeline_parallel}"
            raise ValueError(f"{chosen} with --speculate {self.speculate.value}; accepted: one of the two")
        if self.place is not None:
            self.place.check(
                self.processes_flags,
                has_lora_dir=self.lora_dir is not None,
                is_clear_allowed=self.service.security.insecure_listen,
            )
        elif self.threads % self.num_processes:
            raise ValueError(
                f"--threads is {self.threads} with {self.processes_flags}; accepted: a multiple of "
                f"{self.num_processes}"
            )

    def _check_computes_nothing(self) -> None:
        """Raise ValueError for a flag that only a worker which computes has a use for."""
        for field in ("deterministic", "prove_model", "lora", "lora_dir", "share_prefixes"):
            if getattr(self, field):
                flag = f"--{field.replace('_', '-')}"
                raise ValueError(f"{flag} is set with --timed; accepted: a worker that computes")
        for field in ("quantisation", "speculate"):
            value = getattr(self, field).value
            if value != "none":
                chosen = f"--{field} is {value}"
                raise ValueError(f"{chosen} with --timed; accepted: none, since nothing is computed")
        if self.draft_model is not None:
            chosen = f"--draft-model is {str(self.draft_model)!r}"
            raise ValueError(f"{chosen} with --timed; accepted: no draft model, since nothing is computed")
        if self.num_processes > 1:
            chosen = self._chosen_processes
            raise ValueError(f"{chosen} with --timed; accepted: 1, since nothing is computed")
        if self.kv_disk is not None:
            chosen = f"--kv-disk is {str(self.kv_disk)!r}"
            raise ValueError(f"{chosen} with --timed; accepted: no folder, since nothing is computed")


def parse_config(argv: Sequence[str], role: str, process_id: int) -> WorkerConfig:
    """Return the settings that flags give; raise `ValueError`, or exit with code 2 on unknown flags."""
    given = vars(flags(role, process_id).parse_args(argv))
    given["service"] = settings_of(given)
    given["transport"] = TransportMode(given["transport"])
    given["quantisation"] = Quantisation(given["quantisation"])
    given["speculate"] = Speculation(given["speculate"])
    if given["draft_model"] is not None and role != "decode":
        chosen = f"--draft-model is {str(given['draft_model'])!r}"
        raise ValueError(f"{chosen} for a {role} worker; accepted: for decode workers, which draft")
    given["lora"] = tuple(map(_named_path, given["lora"]))
    sizes = given["tensor_parallel"], given["pipeline_parallel"]
    given["place"] = place_in(os.environ) if max(sizes) > 1 else None
    given["threads"] = resolve_threads(
        given["threads"],
        given.pop("workers_per_host"),
        read_cores(),
        *(sizes if given["place"] is None else (1, 1)),
    )
    profile = None if given["timed"] is None else load_timed(given["timed"])
    given["timed"] = profile
    for field, default in SIZES.items():
        if given[field] is None:
            given[field] = default if profile is None else getattr(profile, field)
    return WorkerConfig(**given, cache=_cache_folder())


def flags(role: str, process_id: int) -> argparse.ArgumentParser:
    """Return the parser of a worker's command line."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {role}_worker", description="A prefill or decode worker; both have the same flags."
    )
    add_service_flags(
        parser,
        "127.0.0.1:0",
        "TCP for gRPC, UDP for probes; port 0 takes a free one",
        "time to hand work over after SIGTERM (20)",
    )
    parser.add_argument(
        "--worker-id",
        default=f"{role}-{process_id}",
        metavar="ID",
        help="this worker's name in the fleet and in logs (<role>-<process id>)",
    )
    _add_size_flags(parser)
    _add_model_flags(parser)
    _add_transport_flags(parser)
    return parser


def _add_size_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--block-size", type=int, metavar="TOKENS", help=f"tokens of a KV block ({SIZES['block_size']})")
    add("--num-blocks", type=int, metavar="N", help="KV blocks of this worker (what --kv-memory-mb holds)")
    add(
        "--kv-memory-mb", type=int, metavar="MB", help="KV memory (256; on a GPU nine tenths of what is free)"
    )
    add(
        "--kv-disk",
        type=Path,
        metavar="PATH",
        help="a folder of this worker alone, for KV blocks that leave its memory: prompts that begin alike "
        "find them again, also after a restart (none)",
    )
    add("--kv-disk-mb", type=int, metavar="MB", help=f"most that --kv-disk holds ({KV_DISK_MB})")
    add(
        "--share-prefixes",
        action="store_true",
        help="lend KV blocks to other workers with this flag, and fetch theirs where that is faster than "
        "computing the beginning of a prompt",
    )
    add("--max-num-seqs", type=int, metavar="N", help=f"sequences that run at once ({SIZES['max_num_seqs']})")
    add("--token-budget", type=int, metavar="TOKENS", help=f"most tokens of a step ({SIZES['token_budget']})")
    add("--policy", default=DEFAULT, choices=NAMES, help=f"what a step consists of ({DEFAULT})")
    add(
        "--timed",
        metavar="PROFILE",
        help="compute nothing; steps last as long as this profile says, and it sets the sizes above: "
        f"{', '.join(names())}, or a file",
    )


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--dtype",
        default="auto",
        choices=DTYPES,
        help="the type of weights and KV; auto: bfloat16 on a GPU, and on a CPU that multiplies it if the "
        "checkpoint has it, otherwise float32 (auto)",
    )
    add("--device", default="auto", choices=DEVICES, help="auto: a GPU where there is one (auto)")
    add(
        "--deterministic",
        action="store_true",
        help="compute the same tokens and log-probabilities whoever shares a step; slower",
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
        help="draw the weights instead of reading them, to measure; --model needs only config.json and "
        "tokenizer.json",
    )
    add(
        "--prove-model",
        action="store_true",
        help="serve an architecture that is not on the list too, once this worker has shown that it computes "
        "what transformers does",
    )
    add(
        "--quantisation",
        default=Quantisation.NONE.value,
        choices=[choice.value for choice in Quantisation],
        help="what is kept in 8 bits; int8: weights of linear layers, kv8: keys and values, kvfp8: keys and "
        "values as fp8, which is less exact (none)",
    )
    add(
        "--no-fusion",
        dest="fusion",
        action="store_false",
        help="keep the model's own modules instead of fused ones, to debug",
    )
    add(
        "--speculate",
        default=Speculation.NONE.value,
        choices=[choice.value for choice in Speculation],
        help="draft tokens and verify several in a step, with the same output; lookup: draft what followed "
        "the newest tokens earlier in the prompt or output (none)",
    )
    add(
        "--draft-model",
        type=Path,
        metavar="PATH",
        help="a smaller model of the same vocabulary: it drafts tokens, and decode workers verify several in "
        "a step, with the same output; where --speculate lookup finds some, these come first (none)",
    )
    add(
        "--lora",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="serve a LoRA adapter under this name, from the folder with its adapter_config.json and "
        "adapter_model.safetensors; may be repeated (none)",
    )
    add(
        "--lora-dir",
        type=Path,
        metavar="PATH",
        help="a folder with a folder for each LoRA adapter, which has its name: adapters are loaded when "
        "requests ask for them, and may come and go while the worker runs (none)",
    )
    add(
        "--lora-memory-mb",
        type=int,
        metavar="MB",
        help="memory for the adapters of --lora-dir; the least recently used makes room for another "
        f"({LORA_MEMORY_MB})",
    )
    add(
        "--lora-rank",
        type=int,
        metavar="R",
        help=f"the largest rank of an adapter of --lora-dir ({LORA_RANK})",
    )
    add(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="N",
        help="processes that compute each step of this worker, or of each stage, together, each with a part "
        "of every layer; on a CPU (1)",
    )
    add(
        "--pipeline-parallel",
        type=int,
        default=1,
        metavar="N",
        help="stages that compute the steps of this worker in turn, each with some of the layers, several "
        "steps at once; each has the processes of --tensor-parallel; on a CPU (1)",
    )
    add(
        "--threads",
        type=int,
        metavar="N",
        help="threads that compute, in all processes of --tensor-parallel and --pipeline-parallel that this "
        "one starts; 0: one for each processor (the cores of full speed / --workers-per-host)",
    )
    add(
        "--workers-per-host",
        type=int,
        default=WORKERS_PER_HOST,
        metavar="N",
        help=f"workers that share the cores, for the default of --threads ({WORKERS_PER_HOST})",
    )


def _named_path(text: str) -> tuple[str, Path]:
    name, sign, path = text.partition("=")
    if not sign or not path:
        raise ValueError(f"--lora is {text!r}; accepted: NAME=PATH")
    return name, Path(path)


def _add_transport_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--transport",
        default="auto",
        choices=[mode.value for mode in TransportMode],
        help="how KV travels; auto: the first that works of cuda_ipc, shm, nixl, grpc (auto)",
    )
    parser.add_argument(
        "--shm-dir",
        default=Path("/dev/shm"),  # noqa: S108 - the memory itself has no name
        type=Path,
        metavar="PATH",
        help="the folder of the sockets of the shm transport (/dev/shm)",
    )


def _cache_folder() -> Path:
    """Return the folder of the XDG base directory specification, which ignores relative paths."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "baton"
    try:
        return Path.home() / ".cache" / "baton"
    except RuntimeError:  # a container's user may have no home
        return Path(tempfile.gettempdir()) / "baton"
