"""Records live fleets anew: `python -m tests.golden.record [SCENE...]`.

Each scene of `tests.golden.scenes` is played on a fleet of its own, whose routers record. Each recording is
decided again and must be decided identically; then it is stored with all actions. The scene `simulated` is a
router of the simulator, whose workers report in runs as no live worker does.

With `--decide-again` no fleet is started: the stored events are kept and today's decisions stored beside
them, for a change of what routers decide that is wanted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from router.core.core import RouterCore
from router.core.model.actions import Action
from router.core.model.events import Event
from router.core.model.state import CoreConfig
from router.core.simulated_runs import SimulatedEvent, SimulatedRouterCore
from router.replay.recording import digest
from router.replay.replay import Recorded, RecordingError, read
from sim.play import simulation
from tests.adapters import write_adapter
from tests.fleets import DEMO_MODEL
from tests.golden import stored
from tests.golden.scenes import SCENES, SMALL, Scene
from tests.golden.schema import differences
from tests.golden.tables import outcome

SIMULATED = "simulated"
SIMULATION = "--policy slack --placement conditional --fleet 1p2d --workload mixed --load 1.2 --duration-s 12"


def main(typed: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)} (all)")
    parser.add_argument("--keep", type=Path, help="also keep the routers' own files in this folder")
    parser.add_argument("--decide-again", action="store_true", help="store what today's code decides")
    args = parser.parse_args(typed)
    if differences(stored.read_schema(), stored.current_schema()):
        parser.error("the stored recordings do not fit the code; see tests.golden.convert first")
    if args.decide_again:
        for path in stored.paths():
            decide_again(path)
        return 0
    with tempfile.TemporaryDirectory(prefix="baton-golden-") as made:
        for name in args.scenes or (*SCENES, SIMULATED):
            if name == SIMULATED:
                store(SIMULATED, *simulated())
            else:
                asyncio.run(record(name, SCENES[name], args.keep or Path(made)))
    return 0


def decide_again(path: Path) -> None:
    recording = stored.read(path)
    stored.write(path, replace(recording, lines=list(stored.decide_again(recording))))


async def record(name: str, scene: Scene, folder: Path) -> None:
    """Play a scene; store what each of its routers recorded."""
    logs = folder / name
    logs.mkdir()
    spec = _spec(scene, logs)
    async with Fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        await scene.play(fleet, client)
    for router in spec.router_names:
        config, events = checked(logs / f"{router}.jsonl")
        store(f"{name}-{router}" if spec.routers > 1 else name, config, events)


def store(name: str, config: CoreConfig, events: Sequence[tuple[float, SimulatedEvent]]) -> None:
    recording = stored.recording_of(config, events)
    stored.write(stored.FOLDER / f"{name}{stored.SUFFIX}", recording)
    num_actions = sum(len(actions) for _, _, actions in recording.lines)
    sys.stdout.write(f"{name}: {len(events)} events, {num_actions} actions\n")


def simulated() -> tuple[CoreConfig, list[tuple[float, SimulatedEvent]]]:
    """Return what a router of the simulator was told."""
    cores: list[_RecordedCore] = []

    def make(config: CoreConfig) -> SimulatedRouterCore:
        cores.append(_RecordedCore(config))
        return cores[-1]

    with mock.patch.object(simulation, "SimulatedRouterCore", make):
        outcome(SIMULATION)
    return cores[0].config, cores[0].taken


class _RecordedCore(SimulatedRouterCore):
    """Keeps what it is told."""

    def __init__(self, config: CoreConfig) -> None:
        super().__init__(config)
        self.config = config
        self.taken: list[tuple[float, SimulatedEvent]] = []

    def on(self, event: SimulatedEvent, now: float) -> list[Action]:
        self.taken.append((now, event))
        return super().on(event, now)


def _spec(scene: Scene, logs: Path) -> FleetSpec:
    options: dict[str, Any] = {"timed": SMALL, **scene.fleet}
    args: dict[str, Sequence[str]] = {
        "router": scene.router,
        "prefill": scene.workers,
        "decode": scene.workers,
    }
    for number in range(options.get("routers", 1)):
        args[f"router-{number}"] = ("--record", str(logs / f"router-{number}.jsonl"))
    if scene.adapters:
        options["lora_dir"] = logs / "adapters"
        for seed, name in enumerate(scene.adapters):
            write_adapter(DEMO_MODEL, logs / "adapters" / name, seed=seed)
    environment = {}
    if scene.site:
        (logs / "sitecustomize.py").write_text(scene.site)
        environment["PYTHONPATH"] = str(logs)
    return FleetSpec(
        model=DEMO_MODEL, run_dir=logs / "run", extra_args=args, environment=environment, **options
    )


def checked(path: Path) -> tuple[CoreConfig, list[tuple[float, Event]]]:
    """Return the events that were all decided identically once more; those of a killed router end early."""
    with path.open(encoding="ascii") as lines:
        config, recorded = read(lines)
        core = RouterCore(config)
        events = []
        for taken in _whole(recorded):
            if digest(core.on(taken.event, taken.now)) != taken.digest:
                raise RuntimeError(f"{path}, line {taken.line}: decided otherwise than by the live router")
            events.append((taken.now, taken.event))
    return config, events


def _whole(recorded: Iterator[Recorded]) -> Iterator[Recorded]:
    try:
        yield from recorded
    except RecordingError as broken_off:
        sys.stderr.write(f"{broken_off}\n")


if __name__ == "__main__":
    sys.exit(main())
