"""The description of a fleet, and the command line of each of its processes."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from baton.fleet.processes.process import ProcessSpec
from baton.fleet.secured import SecuredFleet

WITHOUT_REDIS = ("refuse", "local")
SPECIAL_TOKENS_IN_CONTENT = ("text", "keep", "refuse")
GENERATION_CONFIGS = ("model", "none")
PLACEMENTS = ("disaggregated", "aggregated", "conditional")
QUANTISATIONS = (
    "none",
    "int8",
    "int4",
    "kv8",
    "kvfp8",
    "int8+kv8",
    "int8+kvfp8",
    "int4+kv8",
    "int4+kvfp8",
    "int8+logits8",
    "int4+logits8",
    "int8+logits8+kv8",
    "int4+logits8+kv8",
)
POLICIES = ("static", "dynamic", "orca", "prefill_first", "chunked", "slack")
SPECULATIONS = ("none", "lookup")
_CHOICES = {
    "policy": POLICIES,
    "placement": PLACEMENTS,
    "without_redis": WITHOUT_REDIS,
    "special_tokens_in_content": SPECIAL_TOKENS_IN_CONTENT,
    "generation_config": GENERATION_CONFIGS,
    "quantisation": QUANTISATIONS,
    "speculate": SPECULATIONS,
}
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A fleet on this machine. Processes are named redis, router-0, prefill-0, decode-0, gateway-0 and so on.

    `extra_args` adds arguments to the processes of one kind ("prefill") or to one process ("prefill-1"). They
    come last and override the launcher's own. `model` is a folder, a GGUF file, or a model of the hub
    (`baton.fleet.hub_names`), which is fetched first; so may `draft_model` be. A router is `router_processes`
    processes behind one port. Without `redis_url` a private server is started. `router_port` is the first
    router's port and `http_port` the first gateway's; 0 takes free ones. Without `threads` the workers share
    the cores. `secure` is a folder for certificates and keys, which are made if missing; it turns on TLS
    everywhere. A start may take any time while it reports progress, and be silent for `standstill_s`. A
    process that leaves has `drain_s` to hand over its work; a fleet that stops waits for `stop_grace_s`.
    Without `run_dir` the logs go to the next number below `.baton/runs` in the checkout. `policy`,
    `placement`, `without_redis`, `special_tokens_in_content` and `generation_config` default to those of the
    services. `timed` names a profile, or a file with one: workers compute nothing and take its times.
    `deterministic` workers give the same bits whatever else is in a step. Workers that `prove_model` serve
    architectures off the list, which they prove first. `quantisation` names what all workers keep in 8 bits.
    `speculate` says where decode workers take drafts of the next tokens from; `draft_model` is a smaller
    model that drafts for them, where that finds none. `lora` are adapters that all workers serve, each as
    NAME=PATH; `lora_dir` is a folder of adapters, of ranks up to `lora_rank`, which workers load when
    requests ask for them, each into `lora_memory_mb` of its own. KV blocks that leave a worker's pool are
    kept in `kv_host_memory_mb` of host memory of its own, and behind that in a folder of its own in the
    folder `kv_disk`, with at most `kv_disk_mb` each. Workers that `share_prefixes` fetch KV blocks from each
    other where that is faster than computing them. `tensor_parallel` processes of each worker compute its
    steps together. With `pipeline_parallel` stages, which compute them in turn, each with some of the layers,
    each stage has as many. `served_model_names` are names of the model for HTTP callers, beside its own.
    Gateways with `strict_fields` refuse what is not served and would be left out otherwise.
    """

    model: Path
    prefill: int = 1
    decode: int = 1
    routers: int = 1
    router_processes: int = 1
    gateways: int = 0
    redis_url: str | None = None
    router_port: int = 0
    http_port: int = 0
    policy: str | None = None
    placement: str | None = None
    without_redis: str | None = None
    special_tokens_in_content: str | None = None
    generation_config: str | None = None
    timed: str | None = None
    deterministic: bool = False
    prove_model: bool = False
    quantisation: str | None = None
    speculate: str | None = None
    draft_model: Path | None = None
    lora: Sequence[str] = ()
    lora_dir: Path | None = None
    lora_memory_mb: int | None = None
    lora_rank: int | None = None
    kv_host_memory_mb: int | None = None
    kv_disk: Path | None = None
    kv_disk_mb: int | None = None
    share_prefixes: bool = False
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    served_model_names: Sequence[str] = ()
    strict_fields: bool = False
    threads: int | None = None
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    checkout: Path | None = None
    run_dir: Path | None = None
    secure: Path | None = None
    standstill_s: float = 120.0
    stop_grace_s: float = 5.0
    drain_s: float = 20.0
    await_connections: bool = True

    def __post_init__(self) -> None:
        leasts = {
            "prefill": 0,
            "decode": 1,
            "routers": 1,
            "router_processes": 1,
            "gateways": 0,
            "tensor_parallel": 1,
            "pipeline_parallel": 1,
        }
        for name, least in leasts.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be {least} or more")
        for name, accepted in _CHOICES.items():
            chosen = getattr(self, name)
            if chosen is not None and chosen not in accepted:
                raise ValueError(f"{name} is {chosen!r}: it must be one of {', '.join(accepted)}")
        if self.placement == "disaggregated" and self.prefill == 0:
            raise ValueError("placement is 'disaggregated' with 0 prefill workers: it needs at least 1")
        if self.timed:
            self._check_timed()
        self._check_lora()
        if self.kv_host_memory_mb is not None and self.kv_host_memory_mb < 0:
            raise ValueError(f"kv_host_memory_mb is {self.kv_host_memory_mb}: it must be 0 (none) or more")
        if self.kv_disk_mb is not None and (self.kv_disk is None or self.kv_disk_mb < 1):
            raise ValueError(f"kv_disk_mb is {self.kv_disk_mb}: it must be 1 or more, with kv_disk")
        if self.secure and self.redis_url and not self.redis_url.startswith(("rediss://", "unix://")):
            raise ValueError(
                f"redis_url is {self.redis_url!r} in a secured fleet: it must be rediss:// or unix://"
            )
        self._check_ports()
        if self.threads is not None and self.threads < 0:
            raise ValueError(f"threads is {self.threads}: it must be 0 (one for each core) or more")
        unknown = set(self.extra_args) - {"router", "prefill", "decode", "gateway"} - set(self.process_names)
        if unknown:
            raise ValueError(f"extra_args names {sorted(unknown)}: there are {', '.join(self.process_names)}")

    def _check_lora(self) -> None:
        for adapter in self.lora:
            if not all(adapter.partition("=")):
                raise ValueError(f"lora has {adapter!r}: it must be NAME=PATH")
        if self.deterministic and self.lora:
            raise ValueError("lora is set with deterministic: it must be one of the two")
        if self.lora_dir is not None and (self.lora or self.deterministic):
            other = "lora" if self.lora else "deterministic"
            raise ValueError(f"lora_dir is set with {other}: it must be one of the two")
        for name in ("lora_memory_mb", "lora_rank"):
            chosen = getattr(self, name)
            if chosen is not None and (self.lora_dir is None or chosen < 1):
                raise ValueError(f"{name} is {chosen}: it must be 1 or more, with lora_dir")

    def _check_timed(self) -> None:
        if self.deterministic or self.quantisation not in {None, "none"}:
            raise ValueError("deterministic or quantisation is set with timed: timed workers compute nothing")
        for name in ("prove_model", "lora", "share_prefixes"):
            if getattr(self, name):
                raise ValueError(f"{name} is set with timed: timed workers compute nothing")
        for name, nothing in (
            ("speculate", "none"),
            ("draft_model", None),
            ("lora_dir", None),
            ("kv_disk", None),
            ("kv_host_memory_mb", 0),
            ("tensor_parallel", 1),
            ("pipeline_parallel", 1),
        ):
            chosen = getattr(self, name)
            if chosen not in {None, nothing}:
                raise ValueError(f"{name} is {str(chosen)!r} with timed: timed workers compute nothing")

    def _check_ports(self) -> None:
        for name, number in (("router_port", self.routers), ("http_port", self.gateways)):
            port, highest = getattr(self, name), min(65535, 65536 - number)
            if not 0 <= port <= highest:
                raise ValueError(f"{name} is {port}: it must be 0 (a free one) to {highest}")
        ports = [port for _, _, port in self.fixed_addresses]
        if len(set(ports)) < len(ports):
            raise ValueError(f"http_port is {self.http_port}: it must be a port that no router takes")

    @property
    def router_names(self) -> tuple[str, ...]:
        return tuple(f"router-{i}" for i in range(self.routers))

    @property
    def gateway_names(self) -> tuple[str, ...]:
        return tuple(f"gateway-{i}" for i in range(self.gateways))

    @property
    def fixed_addresses(self) -> tuple[tuple[str, str, int], ...]:
        """Kind, host and port of each router and gateway whose port is fixed."""
        listening = (("router", self.router_port, self.routers), ("gateway", self.http_port, self.gateways))
        return tuple(
            (kind, _HOST, first + index)
            for kind, first, number in listening
            if first
            for index in range(number)
        )

    @property
    def worker_names(self) -> tuple[str, ...]:
        kinds = {"prefill": self.prefill, "decode": self.decode}
        return tuple(f"{kind}-{index}" for kind, number in kinds.items() for index in range(number))

    @property
    def process_names(self) -> tuple[str, ...]:
        return self.router_names + self.worker_names + self.gateway_names

    @property
    def num_workers(self) -> int:
        return self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The folders, models, Redis and certificates that exist before the services start."""

    checkout: Path
    model: str
    """A folder, or a model of the hub at a commit."""
    draft_model: str | None
    """The same."""
    redis_url: str
    gateway_redis_url: str
    shm_dir: Path | None
    secured: SecuredFleet | None = None


def service_processes(spec: FleetSpec, around: Surroundings) -> list[ProcessSpec]:
    """Return the routers, then the prefill workers, then the decode workers."""
    routers = [_router(spec, around, name, index) for index, name in enumerate(spec.router_names)]
    return routers + [_worker(spec, around, name) for name in spec.worker_names]


def fetching_process(spec: FleetSpec, checkout: Path, name: str, model: str) -> ProcessSpec:
    """Return the process that fetches a model of the hub; the address of it is the model at a commit."""
    if spec.timed:
        program = ["runtime.hub", model, "--files", "facts"]
    else:  # it looks first whether a worker could serve the model
        program = ["worker.startup.fetch", model, *(["--prove-model"] if spec.prove_model else [])]
    command = (sys.executable, "-m", *program, "--log-format", "json")
    return ProcessSpec(name, command, checkout, environment=spec.environment)


def gateway_processes(spec: FleetSpec, around: Surroundings, routers: Sequence[str]) -> list[ProcessSpec]:
    """Return the gateways, which are clients of the routers at these addresses.

    A router of several processes is named once for each: a connection is one process's.
    """
    named = ["--redis", around.gateway_redis_url]
    for address in routers:
        named += ["--router", address] * spec.router_processes
    for name in spec.served_model_names:
        named += ["--served-model-name", name]
    named += ["--strict-fields"] if spec.strict_fields else []
    return [
        _process(spec, around, "gateway", name, [*_listen(spec.http_port, index), *named])
        for index, name in enumerate(spec.gateway_names)
    ]


def _router(spec: FleetSpec, around: Surroundings, name: str, index: int) -> ProcessSpec:
    own = ["--router-id", name, *_listen(spec.router_port, index)]
    own += _flags(
        placement=spec.placement,
        without_redis=spec.without_redis,
        special_tokens_in_content=spec.special_tokens_in_content,
        generation_config=spec.generation_config,
    )
    own += ["--processes", str(spec.router_processes)] if spec.router_processes > 1 else []
    return _service(spec, around, "router", name, own)


def _worker(spec: FleetSpec, around: Surroundings, name: str) -> ProcessSpec:
    own = ["--worker-id", name, *_listen(0), "--workers-per-host", str(spec.num_workers)]
    own += ["--deterministic"] if spec.deterministic else []
    own += ["--prove-model"] if spec.prove_model else []
    own += ["--share-prefixes"] if spec.share_prefixes else []
    own += _flags(threads=spec.threads, quantisation=spec.quantisation, shm_dir=around.shm_dir)
    own += ["--tensor-parallel", str(spec.tensor_parallel)] if spec.tensor_parallel > 1 else []
    own += ["--pipeline-parallel", str(spec.pipeline_parallel)] if spec.pipeline_parallel > 1 else []
    for adapter in spec.lora:
        adapter_name, _, path = adapter.partition("=")
        own += ["--lora", f"{adapter_name}={Path(path).resolve()}"]
    own += _flags(
        lora_dir=spec.lora_dir and spec.lora_dir.resolve(),
        lora_memory_mb=spec.lora_memory_mb,
        lora_rank=spec.lora_rank,
    )
    own += _flags(kv_host_memory_mb=spec.kv_host_memory_mb)
    own += _flags(kv_disk=spec.kv_disk and spec.kv_disk.resolve() / name, kv_disk_mb=spec.kv_disk_mb)
    if kind_of(name) == "decode":
        own += _flags(speculate=spec.speculate, draft_model=around.draft_model)
    return _service(spec, around, f"{kind_of(name)}_worker", name, own)


def _service(
    spec: FleetSpec, around: Surroundings, module: str, name: str, own: Sequence[str]
) -> ProcessSpec:
    common = ["--redis", around.redis_url, "--model", around.model]
    common += _flags(policy=spec.policy, timed=spec.timed and _profile(spec.timed))
    return _process(spec, around, module, name, [*common, *own])


def _process(
    spec: FleetSpec, around: Surroundings, module: str, name: str, own: Sequence[str]
) -> ProcessSpec:
    kind = kind_of(name)
    common = ["--drain-s", f"{spec.drain_s:g}"]
    if around.secured is not None:
        common += around.secured.service_flags(kind, private_redis=spec.redis_url is None)
    extra = [*spec.extra_args.get(kind, ()), *spec.extra_args.get(name, ())]
    return ProcessSpec(
        name=name,
        command=(sys.executable, "-m", module, *common, *own, *extra),
        cwd=around.checkout,
        environment=spec.environment,
    )


def _listen(first_port: int, index: int = 0) -> list[str]:
    return ["--listen", f"{_HOST}:{first_port + index if first_port else 0}"]


def kind_of(name: str) -> str:
    """Return the kind of a process by its name: redis, router, prefill, decode or gateway."""
    return name.partition("-")[0]


def _flags(**values: object) -> list[str]:
    """Return a flag and its value for each value that is set."""
    pairs = (
        (f"--{name.replace('_', '-')}", str(value)) for name, value in values.items() if value is not None
    )
    return list(itertools.chain.from_iterable(pairs))


def _profile(name_or_path: str) -> str:
    """Return a profile's name, or its absolute path: the services have another working directory."""
    is_path = "/" in name_or_path or name_or_path.endswith(".json")
    return str(Path(name_or_path).resolve()) if is_path else name_or_path
