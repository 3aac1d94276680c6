"""Measure this machine as a worker and write its profile, for the simulator and the timed engine.

    python -m tools.make_profile --name demo-cpu --model demo_model --threads 1 --out PROFILE.json

Takes every flag of a worker besides. Costs are fitted to the start-up sweep and to real steps of the engine,
packing and sampling included. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import statistics
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.costs.real_steps import StepRecorder
from engine.building.build import resolve_device
from runtime.process.event_loop import freeze_garbage
from scheduling.cost.cost_fit import fit
from scheduling.cost.profiles import Profile, dump
from scheduling.cost_model import CostModel, Sample
from worker.config import WorkerConfig
from worker.engine.engine import Engine
from worker.startup.build import build_engine
from worker.startup.flags import parse_config
from worker.startup.kept_files import device_name

NUM_ACTS = 12
REQUESTS_PER_ACT = 40
LONGEST_PROMPT = 900
LONGEST_OUTPUT = 100


def main() -> None:
    args, of_worker = flags().parse_known_args()
    config = parse_config([*of_worker, "--policy=chunked"], "decode", 0)
    with tempfile.TemporaryDirectory() as nothing_kept:
        engine = build_engine(dataclasses.replace(config, cache=Path(nothing_kept)))
    freeze_garbage()
    profile = _profile(args.name, config, engine)
    args.out.write_text(dump(profile), encoding="utf-8")
    print(f"{args.out}: {profile.cost}")


def flags() -> argparse.ArgumentParser:
    """Return the parser of this tool's own flags; all others go to the worker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--name", required=True, metavar="NAME", help="the name of the profile")
    parser.add_argument("--out", required=True, type=Path, metavar="PATH", help="the file to write")
    return parser


def _profile(name: str, config: WorkerConfig, engine: Engine) -> Profile:
    recorder = StepRecorder(engine, seed=1)
    acts = [recorder.varied(REQUESTS_PER_ACT, LONGEST_PROMPT, LONGEST_OUTPUT) for _ in range(NUM_ACTS)]
    steps = [step for act in acts[1:] for step in act]
    copy_rate = _copy_rate(engine)
    layout = engine.pool.layout
    device = resolve_device(config.device)
    today = dt.datetime.now(tz=dt.UTC)
    return Profile(
        name=name,
        model_name=config.service.model.resolve().name,
        block_size=config.block_size,
        kv_bytes_per_token=layout.block_bytes // config.block_size,
        num_blocks=engine.pool.num_blocks,
        max_num_seqs=config.max_num_seqs,
        token_budget=config.token_budget,
        max_context=engine.max_context,
        cost=_cost(engine, steps),
        handoff_bytes_per_s=copy_rate / 2,
        swap_bytes_per_s=copy_rate,
        host=f"{device_name(device)}, torch {torch.__version__}, {torch.get_num_threads()} threads",
        weights_fingerprint=engine.fingerprint,
        measured=(
            f"costs, {today:%Y-%m-%d}, by tools/make_profile.py: {_count(steps, engine)}",
            "ratios: over the engine's own steps",
            "swap_bytes_per_s: copies of blocks within this machine's memory",
        ),
        derived=("handoff_bytes_per_s: half of that, copied in and out of shared memory and verified",),
    )


def _count(steps: list[Sample], engine: Engine) -> str:
    return f"{len(steps)} steps of the engine and {len(engine.samples)} of the start-up sweep"


def _cost(engine: Engine, steps: list[Sample]) -> CostModel:
    """Fit the costs to all steps; the band is that of the engine's own steps."""
    fitted = fit([*engine.samples, *steps], floor_s=engine.cost.chunk_floor_s)
    if fitted is None:
        raise ValueError("too few steps were measured to fit costs to; accepted: a machine that runs some")
    return fitted.judged_by(steps)


def _copy_rate(engine: Engine) -> float:
    """Return the bytes per second of copying half of the pool's blocks to others."""
    engine.pool.tensor.fill_(1.0)  # pages that nobody has written to are not there, and copied at once
    half = engine.pool.num_blocks // 2
    source, target = engine.pool.tensor[:half], engine.pool.tensor[half : 2 * half]
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - started)
    return half * engine.pool.layout.block_bytes / statistics.median(seconds)


if __name__ == "__main__":
    main()
