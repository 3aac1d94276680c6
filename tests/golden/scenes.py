"""The fleets that are recorded: many short scenes rather than a few long ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from baton import AsyncClient, Slo, SloClass
from baton.fleet import Fleet
from tests.golden import plays
from tests.golden.traffic import Mix

Play = Callable[[Fleet, AsyncClient], Awaitable[None]]

SMALL = "demo-cpu"
LARGE = "h200-llama-3.1-8b"
ONE_BY_ONE = {"prefill": 0, "placement": "aggregated"}
HOLDS_ITS_LOOP = """
import signal, time

def hold(*_):
    end = time.monotonic() + 3
    while time.monotonic() < end:
        pass

signal.signal(signal.SIGUSR1, hold)
"""
"""Put into a worker: the signal's handler keeps its event loop busy."""


@dataclass(frozen=True, slots=True)
class Scene:
    """`fleet` is for `FleetSpec`, but for what `extra_args` are: arguments of each kind of process."""

    play: Play
    fleet: Mapping[str, Any] = field(default_factory=dict)
    router: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    """Names of LoRA adapters in the folder that workers load them from."""
    site: str = ""
    """Python that every worker runs first."""


CLASSES = Mix(
    prompt=(200, 4000),
    output=(4, 40),
    slos=(
        Slo(ttft_ms=400, tpot_ms=25, slo_class=SloClass.INTERACTIVE), Slo(ttft_ms=1000, itl_ms=50),
        Slo(ttft_ms=4000, slo_class=SloClass.BATCH), plays.BATCH,
    ),
)  # fmt: skip

SCENES: dict[str, Scene] = {
    "static": Scene(plays.steady, {"policy": "static"}, workers=("--max-num-seqs", "8")),
    "dynamic": Scene(plays.steady, {"policy": "dynamic"}, workers=("--max-num-seqs", "8")),
    "orca": Scene(plays.steady, {"policy": "orca"}),
    "prefill-first": Scene(plays.steady, {"policy": "prefill_first"}),
    "chunked": Scene(plays.steady, {"policy": "chunked"}),
    "chunked-aggregated": Scene(plays.steady, {"policy": "chunked", "decode": 2, **ONE_BY_ONE}),
    "slack-conditional": Scene(plays.steady, {"policy": "slack", "prefill": 2, "decode": 2}),
    "slack-disaggregated": Scene(plays.steady, {"policy": "slack", "placement": "disaggregated"}),
    "slack-aggregated": Scene(plays.steady, {"policy": "slack", "decode": 2, **ONE_BY_ONE}),
    "classes": Scene(
        partial(plays.steady, per_s=20, mix=CLASSES),
        {"timed": LARGE, "prefill": 1, "decode": 2, "routers": 2},
    ),
    "orca-large": Scene(partial(plays.steady, per_s=12, mix=CLASSES), {"timed": LARGE, "policy": "orca"}),
    "tenants": Scene(
        plays.tenants,
        {"timed": LARGE, "routers": 2, **ONE_BY_ONE},
        router=("--tenant-weights", "big=1,small=2"),
    ),
    "deaths": Scene(plays.deaths, {"prefill": 2, "decode": 2}),
    "broken-promises": Scene(plays.broken_promises, {"timed": LARGE, **ONE_BY_ONE, "decode": 5}),
    "router-dies": Scene(plays.router_dies, {"routers": 2}),
    "router-leaves": Scene(plays.router_leaves, {"routers": 2, "drain_s": 2.0}),
    "drains": Scene(plays.drains, {"decode": 3}),
    "target-dies": Scene(plays.target_dies, {"decode": 3, **ONE_BY_ONE}),
    "redis-away": Scene(plays.redis_away, {"without_redis": "refuse"}),
    "redis-away-local": Scene(plays.redis_away, {"without_redis": "local", "routers": 2}),
    "redis-stands-still": Scene(plays.redis_stands_still, {"decode": 2}),
    "preemption": Scene(plays.too_little_memory, {"decode": 2, **ONE_BY_ONE}, workers=("--num-blocks", "40")),
    "preemption-handed-over": Scene(
        plays.too_little_memory, {"decode": 2, "policy": "chunked"}, workers=("--num-blocks", "40")
    ),
    "seats-taken": Scene(plays.seats_taken, {"timed": LARGE, **ONE_BY_ONE}, workers=("--max-num-seqs", "2")),
    "refusals": Scene(plays.refusals, {"timed": LARGE, **ONE_BY_ONE}),
    "sheds": Scene(plays.sheds, {"timed": LARGE, **ONE_BY_ONE}, router=("--queue-capacity", "30")),
    "oddities": Scene(plays.oddities, {"decode": 2}),
    "slow-prompts": Scene(
        plays.slow_prompts, {"prefill": 2, "placement": "disaggregated"}, workers=("--token-budget", "16")
    ),
    "nobody-decodes": Scene(plays.nobody_decodes),
    "held": Scene(plays.held, {"decode": 2}, site=HOLDS_ITS_LOOP),
    "stands-still": Scene(plays.stands_still, {"decode": 2}),
    "router-stands-still": Scene(plays.router_stands_still, {"timed": LARGE, **ONE_BY_ONE}),
    "real-model": Scene(
        plays.real_model, {"timed": None, "placement": "disaggregated"}, workers=("--num-blocks", "128")
    ),
    "adapters": Scene(
        plays.adapters, {"timed": None, "decode": 2, "lora_memory_mb": 1, "lora_rank": 8},
        workers=("--dtype", "float32", "--num-blocks", "128"), adapters=("red", "blue"),
    ),
    "real-model-dies": Scene(
        plays.real_model_dies, {"timed": None, "decode": 2}, workers=("--num-blocks", "128")
    ),
}  # fmt: skip
"""By name."""
