"""The description of a fleet, and the command line of each of its processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from baton.fleet.processes.process import ProcessSpec
from baton.fleet.secured import SecuredFleet

WITHOUT_REDIS = ("refuse", "local")
PLACEMENTS = ("disaggregated", "aggregated", "conditional")
QUANTISATIONS = (
    "none", "int8", "int4", "kv8", "kvfp8", "int8+kv8", "int8+kvfp8", "int4+kv8", "int4+kvfp8",
    "int8+logits8", "int4+logits8", "int8+logits8+kv8", "int4+logits8+kv8",
)  # fmt: skip
POLICIES = (
    "static", "dynamic", "orca", "prefill_first", "chunked",
    "slos_serve", "jitserve", "qoserve", "polyserve", "slack",
)  # fmt: skip
CHOICES: dict[str, tuple[str, ...]] = {
    "policy": POLICIES,
    "placement": PLACEMENTS,
    "without_redis": WITHOUT_REDIS,
    "special_tokens_in_content": ("text", "keep", "refuse"),
    "generation_config": ("model", "none"),
    "quantisation": QUANTISATIONS,
    "speculate": ("none", "lookup"),
}
"""The values that each field accepts. None stands for the services' own default."""
_FROM_0 = ("prefill", "gateways", "threads")
_FROM_1 = ("decode", "routers", "router_processes", "tensor_parallel", "pipeline_parallel")
_OF_ROUTERS = ("placement", "without_redis", "special_tokens_in_content", "generation_config")
_OF_WORKERS = (
    "deterministic", "prove_model", "share_prefixes", "threads", "quantisation",
    "lora_memory_mb", "lora_rank", "kv_host_memory_mb", "kv_disk_mb",
)  # fmt: skip
"""Fields that are flags of these services, under the same name."""
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A fleet on this machine. Processes are named redis, router-0, prefill-0, decode-0, gateway-0 and so on.

    Most fields have the name and the meaning of a flag of `baton up` (docs/configuration.md); left out, they
    mean one process (no gateway), or what the services do by default. The others, and those with more to say:

    model, draft_model      a folder, a GGUF file, or a model of the hub, which is fetched first
    router_port, http_port  the first router's and the first gateway's; 0 takes free ones
    further_fleets          the routers of other fleets, which the gateways serve too
    redis_url               without it, a private server is started
    lora                    adapters, each as NAME=PATH
    secure                  a folder for certificates and keys, which are made if missing; it turns on TLS
    extra_args              further arguments of the processes of one kind ("prefill") or of one process
                            ("prefill-1"); they come last and override the launcher's own
    environment             further environment variables of the processes
    run_dir                 by default the next number below `.baton/runs` in the checkout
    standstill_s            how long a start may be silent; while it reports progress, it may take any time
    drain_s                 what a process that leaves has to hand over its work
    stop_grace_s            how long a fleet that stops waits
    await_connections       the start ends when routers and workers are connected, not before
    """

    model: Path
    prefill: int = 1
    decode: int = 1
    routers: int = 1
    router_processes: int = 1
    gateways: int = 0
    further_fleets: Sequence[Sequence[str]] = ()
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
        for name, least in (dict.fromkeys(_FROM_0, 0) | dict.fromkeys(_FROM_1, 1)).items():
            number = getattr(self, name)
            if number is not None and number < least:
                raise ValueError(f"{name} is {number}: it must be {least} or more")
        for name, accepted in CHOICES.items():
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
        for name, with_what in (
            ("lora_memory_mb", "lora_dir"),
            ("lora_rank", "lora_dir"),
            ("kv_disk_mb", "kv_disk"),
        ):
            number = getattr(self, name)
            if number is not None and (getattr(self, with_what) is None or number < 1):
                raise ValueError(f"{name} is {number}: it must be 1 or more, with {with_what}")
        if self.secure and self.redis_url and not self.redis_url.startswith(("rediss://", "unix://")):
            raise ValueError(
                f"redis_url is {self.redis_url!r} in a secured fleet: it must be rediss:// or unix://"
            )
        self._check_ports()
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

    def _check_timed(self) -> None:
        for name in ("deterministic", "quantisation", "prove_model", "lora", "share_prefixes"):
            if getattr(self, name) not in (None, "none", False, (), []):
                raise ValueError(f"{name} is set with timed: timed workers compute nothing")
        nothing = {"speculate": "none", "kv_host_memory_mb": 0, "tensor_parallel": 1, "pipeline_parallel": 1}
        for name in ("draft_model", "lora_dir", "kv_disk", *nothing):
            chosen = getattr(self, name)
            if chosen not in {None, nothing.get(name)}:
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
        program = ["worker.startup.fetch", model, *_flags(prove_model=spec.prove_model)]
    command = (sys.executable, "-m", *program, "--log-format", "json")
    return ProcessSpec(name, command, checkout, environment=spec.environment)


def gateway_processes(spec: FleetSpec, around: Surroundings, routers: Sequence[str]) -> list[ProcessSpec]:
    """Return the gateways, which are clients of the routers at these addresses.

    A router of several processes is named once for each: a connection is one process's.
    """
    named = _flags(
        redis=around.gateway_redis_url,
        router=[address for address in routers for _ in range(spec.router_processes)],
        fleet=[",".join(addresses) for addresses in spec.further_fleets],
        strict_fields=spec.strict_fields,
    )
    return [
        _process(spec, around, "gateway", name, _flags(listen=_listen(spec.http_port, index)) + named)
        for index, name in enumerate(spec.gateway_names)
    ]


def _router(spec: FleetSpec, around: Surroundings, name: str, index: int) -> ProcessSpec:
    own = _flags(
        router_id=name,
        listen=_listen(spec.router_port, index),
        processes=_if_several(spec.router_processes),
        served_model_name=spec.served_model_names,
        **{each: getattr(spec, each) for each in _OF_ROUTERS},
    )
    return _service(spec, around, "router", name, own)


def _worker(spec: FleetSpec, around: Surroundings, name: str) -> ProcessSpec:
    adapters = (adapter.partition("=") for adapter in spec.lora)
    own = _flags(
        worker_id=name,
        listen=_listen(0),
        workers_per_host=spec.num_workers,
        shm_dir=around.shm_dir,
        tensor_parallel=_if_several(spec.tensor_parallel),
        pipeline_parallel=_if_several(spec.pipeline_parallel),
        lora=[f"{adapter}={Path(path).resolve()}" for adapter, _, path in adapters],
        lora_dir=spec.lora_dir and spec.lora_dir.resolve(),
        kv_disk=spec.kv_disk and spec.kv_disk.resolve() / name,
        **{each: getattr(spec, each) for each in _OF_WORKERS},
    )
    if kind_of(name) == "decode":
        own += _flags(speculate=spec.speculate, draft_model=around.draft_model)
    return _service(spec, around, f"{kind_of(name)}_worker", name, own)


def _service(
    spec: FleetSpec, around: Surroundings, module: str, name: str, own: Sequence[str]
) -> ProcessSpec:
    timed = spec.timed and _profile(spec.timed)
    common = _flags(redis=around.redis_url, model=around.model, policy=spec.policy, timed=timed)
    return _process(spec, around, module, name, [*common, *own])


def _process(
    spec: FleetSpec, around: Surroundings, module: str, name: str, own: Sequence[str]
) -> ProcessSpec:
    kind = kind_of(name)
    common = ["--drain-s", f"{spec.drain_s:g}"]
    if around.secured is not None:
        common += around.secured.service_flags(kind, private_redis=spec.redis_url is None)
    extra = [*spec.extra_args.get(kind, ()), *spec.extra_args.get(name, ())]
    command = (sys.executable, "-m", module, *common, *own, *extra)
    return ProcessSpec(name, command, around.checkout, environment=spec.environment)


def _listen(first_port: int, index: int = 0) -> str:
    return f"{_HOST}:{first_port + index if first_port else 0}"


def _if_several(number: int) -> int | None:
    return number if number > 1 else None


def kind_of(name: str) -> str:
    """Return the kind of a process by its name: redis, router, prefill, decode or gateway."""
    return name.partition("-")[0]


def _flags(**values: object) -> list[str]:
    """Return a flag for each value or entry of a list; a bare one for True, none for None or False."""
    flags: list[str] = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            for each in value if isinstance(value, list | tuple) else (value,):
                flags += [flag, str(each)]
    return flags


def _profile(name_or_path: str) -> str:
    """Return a profile's name, or its absolute path: the services have another working directory."""
    is_path = "/" in name_or_path or name_or_path.endswith(".json")
    return str(Path(name_or_path).resolve()) if is_path else name_or_path
