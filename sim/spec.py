"""The specification of a simulation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from router.core.model.events import DECODE, PREFILL
from scheduling.cost.profiles import Profile
from scheduling.placement import Placement
from scheduling.policies import by_name
from scheduling.policies.policy import Policy
from sim.delays import KINDS, RecordedDelay
from sim.step_times import RecordedStep
from sim.workloads.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class FleetShape:
    """The number of workers of each role; decode workers also compute prompts if the placement says so."""

    prefill: int
    decode: int

    def __post_init__(self) -> None:
        if self.prefill < 0:
            raise ValueError(f"fleet has {self.prefill} prefill workers; accepted: 0 or more")
        if self.decode < 1:
            raise ValueError(f"fleet has {self.decode} decode workers; accepted: at least 1")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `2p4d`, or `6d` for six workers of both roles."""
        found = re.fullmatch(r"(?:(\d+)p)?(\d+)d", text)
        if found is None:
            raise ValueError(f"fleet is {text!r}; accepted: like 2p4d, or 6d")
        return cls(int(found[1] or 0), int(found[2]))

    @property
    def size(self) -> int:
        return self.prefill + self.decode

    @property
    def workers(self) -> list[tuple[str, str]]:
        """The role and the id of each worker."""
        counts = ((PREFILL, self.prefill), (DECODE, self.decode))
        return [(role, f"{role}-{number}") for role, count in counts for number in range(count)]

    def __str__(self) -> str:
        return f"{self.prefill}p{self.decode}d" if self.prefill else f"{self.decode}d"


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds that a fleet spends on messages between its parts. The defaults are for processes on one CPU
    host.
    """

    receive_s: float = 0.0005
    """A router's tokenising and validation, before its core receives a request."""
    store_s: float = 0.0006
    """A store call, there and back."""
    command_s: float = 0.0006
    """From a router to a worker's step loop."""
    report_s: float = 0.0008
    """From a worker's step loop to a router."""
    handoff_s: float = 0.002
    """A hand-over without sending the blocks: opening, checking, acknowledging."""
    load_every_s: float = 0.25
    """A worker whose steps cause no other report reports its load this often."""
    progress_every_s: float = 2.0
    """Tokens that are neither first nor last are reported together, this often."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            needs_more = name.endswith("_every_s")
            if not math.isfinite(value) or value < 0 or (needs_more and value == 0):
                accepted = "above 0" if needs_more else "from 0"
                raise ValueError(f"{name} is {value}; accepted: a finite number {accepted}")


@dataclass(frozen=True, slots=True)
class SimSpec:
    """A simulation. Raises ValueError naming the field."""

    profile: Profile
    fleet: FleetShape
    trace: tuple[TraceRequest, ...]
    policy: str | Policy = "slack"
    """One of `scheduling.policies.NAMES`, or one made for an experiment."""
    placement: Placement = Placement.AGGREGATED
    token_budget: int | None = None
    """The most tokens of a step; None: the profile's."""
    max_num_seqs: int | None = None
    num_stages: int = 1
    """Pipeline stages of each worker. Each is a device of the profile, with an equal share of the layers."""
    num_routers: int = 1
    queue_capacity: int = 1_000_000
    seed: int = 0
    noise: float = 1.0
    """How far steps scatter around their prediction: 1 as in the profile, 0 not at all."""
    overheads: Overheads = Overheads()
    delays: Mapping[str, tuple[RecordedDelay, ...]] = field(default_factory=dict)
    """Recorded delays by kind (`sim.delays.KINDS`), used instead of the overheads of every time."""
    step_times: Mapping[str, tuple[RecordedStep, ...]] = field(default_factory=dict)
    """Recorded steps by worker (`prefill-0`, `decode-0`), used instead of drawn ones."""
    at_risk: frozenset[int] = frozenset()
    """Places in the trace of requests that allow to be at risk."""
    states_programs: bool = True
    """Calls of programs say so, with the time that is left. Otherwise routers do not know of programs."""
    drain_s: float = 120.0
    """Seconds after the last arrival until the simulation stops."""
    log_steps: bool = False
    """Keep every step of every worker."""
    stretch: bool = True
    """Decode-only steps are taken many at a time. The outcome is the same without; only slower."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, str):
            by_name(self.policy)
        if not self.trace:
            raise ValueError("trace is empty; accepted: at least one request")
        for name, low in (("token_budget", 1), ("max_num_seqs", 1), ("num_stages", 1), ("num_routers", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} is {value}; accepted: at least {low}")
        for name in ("noise", "drain_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; accepted: a finite number from 0")
        for kind in self.delays:
            if kind not in KINDS:
                raise ValueError(f"delays are given for {kind!r}; accepted: {', '.join(KINDS)}")
        known = {worker_id for _, worker_id in self.fleet.workers}
        for name in self.step_times:
            if name not in known:
                raise ValueError(f"step_times is given for {name!r}; accepted: {', '.join(sorted(known))}")
        self._check_lengths()

    @property
    def rules(self) -> Policy:
        """The policy."""
        return by_name(self.policy) if isinstance(self.policy, str) else self.policy

    @property
    def send_token_s(self) -> float:
        """Seconds to send the KV of one token to another worker."""
        return self.profile.kv_bytes_per_token / self.profile.handoff_bytes_per_s

    def _check_lengths(self) -> None:
        most = self.profile.max_context
        for place, request in enumerate(self.trace):
            if request.most_tokens > most:
                raise ValueError(
                    f"request {place} of the trace can grow to {request.most_tokens} tokens; accepted by "
                    f"profile {self.profile.name}: at most {most}"
                )
