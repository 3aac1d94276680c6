"""A worker's settings: checked once, frozen. `startup.flags` makes them from flags."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from engine.model.quantised.quantisation import Quantisation
from engine.speculation import Speculation
from kvtransfer.transports import nixl
from kvtransfer.transports.transport import TransportMode
from runtime.settings import ServiceSettings, check_least
from scheduling.cost.profiles import Profile
from worker.place import Place

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
    kv_host_memory_mb: int
    """Host memory for blocks that leave the pool; 0: none."""
    kv_disk: Path | None
    """The folder for blocks that leave the pool and host memory; None: they are lost."""
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
    """The folder of a smaller model, which drafts tokens, once it is fetched; None: there is none."""
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
        check_least(self, 0, "kv_host_memory_mb")
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
        if self.device == "cuda" and self.pipeline_parallel > 1:
            raise ValueError(f"{chosen} with --device cuda; accepted: a worker on a CPU")
        for field in ("deterministic", "prove_model"):
            if getattr(self, field):
                raise ValueError(f"{chosen} with --{field.replace('_', '-')}; accepted: one of the two")
        if self.place is not None:
            self.place.check(self.processes_flags, is_clear_allowed=self.service.security.insecure_listen)
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
        if self.kv_host_memory_mb:
            chosen = f"--kv-host-memory-mb is {self.kv_host_memory_mb}"
            raise ValueError(f"{chosen} with --timed; accepted: 0, since nothing is computed")
