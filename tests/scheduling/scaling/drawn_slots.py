"""Slots of requests that tests draw."""

from __future__ import annotations

import random

from runtime.profiles import load_profile
from scheduling.scaling.demand import SLOT_S, Slot, came, total
from scheduling.scaling.steady import WorkerModel, prompt_speed, work_s

PROFILE = load_profile("h200-llama-3.1-8b")
WORKER = WorkerModel(
    PROFILE.cost, PROFILE.token_budget, PROFILE.num_blocks, PROFILE.block_size, PROFILE.max_num_seqs, 0.05
)


def request(prompt: int, output: int, ttft_s: float | None = 0.4, pace_s: float | None = 0.025) -> Slot:
    alone_s = work_s(prompt, prompt * prompt, prompt_speed(WORKER))
    return came(
        prompt_tokens=prompt,
        cached_tokens=0.0,
        num_seqs=1,
        output_tokens=float(output),
        slack_s=None if ttft_s is None else ttft_s - alone_s,
        pace_s=pace_s,
    )


def poisson(rate: float, one: Slot, num_slots: int = 60, seed: int = 1) -> list[Slot]:
    """Return slots in which equal requests come at random."""
    rng = random.Random(seed)
    slots = []
    for _ in range(num_slots):
        count, at_s = 0, rng.expovariate(rate)
        while at_s < SLOT_S:
            count, at_s = count + 1, at_s + rng.expovariate(rate)
        slots.append(total([one] * count))
    return slots
