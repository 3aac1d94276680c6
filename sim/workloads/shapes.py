"""The workloads: how long prompts and outputs are, and when requests arrive.

Token ids are random and end-of-sequence is ignored, so that every system under test computes the same amount.
Lengths are multiplied by a named factor where a small model cannot carry the original ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SHARED_BLOCK_TOKENS = 512
SHARED_POOL_BLOCKS = 16
TURN_S = 60.0


@dataclass(frozen=True, slots=True)
class RequestShape:
    """One request of a workload; lengths in tokens, at least 1."""

    prompt_tokens: int
    output_tokens: int
    slo_class: str = "standard"
    shared_blocks: tuple[int, ...] = ()
    """Places in the pool of shared prefix blocks that the prompt begins with; it may end in the last one."""
    shared_block_tokens: int = 0


def _lognormal(rng: random.Random, median: float, sigma: float, cap: int) -> float:
    while (sample := rng.lognormvariate(math.log(median), sigma)) > cap:
        pass
    return sample


def _exponential(rng: random.Random, mean: float, cap: int) -> float:
    while (sample := rng.expovariate(1 / mean)) > cap:
        pass
    return sample


def _shape(prompt: float, output: float, scale: float, slo_class: str = "standard") -> RequestShape:
    return RequestShape(max(1, round(prompt * scale)), max(1, round(output * scale)), slo_class)


def burst(rng: random.Random, scale: float, cap: int = 512) -> RequestShape:
    """Draw 512 tokens in, exponential with mean 128 out; after Anyscale's continuous-batching comparison."""
    return _shape(512, _exponential(rng, 128, cap), scale)


def chat(rng: random.Random, scale: float, cap: int = 8192) -> RequestShape:
    """Draw lognormal lengths of chat traffic."""
    return _shape(_lognormal(rng, 1730, 0.93, cap), _lognormal(rng, 415, 0.545, cap), scale)


def summarise(rng: random.Random, scale: float, cap: int = 16384) -> RequestShape:
    """Draw long prompts and short outputs."""
    return _shape(
        _lognormal(rng, 7059, 0.476, cap), _lognormal(rng, 208, 0.452, cap), scale, slo_class="batch"
    )


def mixed(rng: random.Random, scale: float, cap: int = 16384) -> RequestShape:
    """Draw thirds of code completion, conversation and batch summaries, each in its own class."""
    kind = rng.randrange(3)
    if kind == 0:
        prompt, output = _lognormal(rng, 1955, 0.956, cap), _lognormal(rng, 8, 1.312, cap)
        return _shape(prompt, output, scale, "interactive")
    if kind == 1:
        prompt, output = _lognormal(rng, 938, 1.123, cap), _lognormal(rng, 41, 1.652, cap)
        return _shape(prompt, output, scale, "standard")
    return summarise(rng, scale, cap)


def shared(rng: random.Random, scale: float, cap: int = 8192) -> RequestShape:
    """Draw `chat`, with half of each prompt taken from a pool of shared blocks of 512 tokens."""
    shape = chat(rng, scale, cap)
    block_tokens = max(1, round(SHARED_BLOCK_TOKENS * scale))
    num_blocks = shape.prompt_tokens // 2 // block_tokens
    blocks = tuple(rng.sample(range(SHARED_POOL_BLOCKS), min(num_blocks, SHARED_POOL_BLOCKS)))
    return RequestShape(
        shape.prompt_tokens, shape.output_tokens, shape.slo_class, blocks, block_tokens if blocks else 0
    )


WORKLOADS: dict[str, Callable[[random.Random, float, int], RequestShape]] = {
    "burst": burst,
    "chat": chat,
    "summarise": summarise,
    "mixed": mixed,
    "shared": shared,
}
DEFAULT_CAPS = {"burst": 512, "chat": 8192, "summarise": 16384, "mixed": 16384, "shared": 8192}


def shapes(workload: str, count: int, seed: int, scale: float, cap: int | None = None) -> list[RequestShape]:
    """Return `count` requests of a workload; the same seed gives the same requests."""
    rng = random.Random(f"{workload}:{seed}")
    limit = DEFAULT_CAPS[workload] if cap is None else cap
    return [WORKLOADS[workload](rng, scale, limit) for _ in range(count)]


def prompt_ids(shape: RequestShape, rng: random.Random, vocab_size: int, pool: str = "") -> list[int]:
    """Return random token ids; shared blocks depend only on the pool and on their place in it."""
    ids: list[int] = []
    for block in shape.shared_blocks:
        block_rng = random.Random(f"shared:{pool}{block}")
        ids += block_rng.choices(range(vocab_size), k=shape.shared_block_tokens)
    del ids[shape.prompt_tokens :]
    return ids + rng.choices(range(vocab_size), k=shape.prompt_tokens - len(ids))


def arrivals(process: str, rate: float, seed: int) -> Iterator[float]:
    """Return arrival times in seconds from 0, without end.

    `poisson`; `gamma:CV`, gaps of that coefficient of variation; `onoff`, Poisson at half and at twice the
    rate by turns of 60 s. `burst` is all at once. Raises `ValueError` for any other process or rate.
    """
    name, _, parameter = process.partition(":")
    if name not in ("poisson", "gamma", "onoff", "burst") or bool(parameter) > (name == "gamma"):
        raise ValueError(f"arrivals is {process!r}; accepted: poisson, gamma:CV, onoff or burst")
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"rate is {rate}; accepted: a finite number above 0, in requests per second")
    rng = random.Random(f"arrivals:{process}:{seed}")
    return _times(_gaps(name, rate, _variation(parameter), rng))


def _variation(parameter: str) -> float:
    try:
        cv = float(parameter or 2)
    except ValueError:
        cv = math.nan
    if not (math.isfinite(cv) and cv > 0):
        raise ValueError(f"the CV of gamma arrivals is {parameter!r}; accepted: a finite number above 0")
    return cv


def _times(gap_at: Callable[[float], float]) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += gap_at(now)


def _gaps(name: str, rate: float, cv: float, rng: random.Random) -> Callable[[float], float]:
    """Return a function that gives the gap after an arrival at a given time."""
    if name == "burst":
        return lambda _: 0.0
    if name == "gamma":
        shape = 1 / cv**2
        return lambda _: rng.gammavariate(shape, 1 / (rate * shape))
    if name == "onoff":
        return lambda now: _on_off_gap(now, rate, rng)
    return lambda _: rng.expovariate(rate)


def _on_off_gap(now: float, rate: float, rng: random.Random) -> float:
    """Return an exponential gap. Such gaps have no memory: one that reaches into the next turn is drawn anew
    from there.
    """
    start, turn = now, int(now / TURN_S)
    while True:
        gap = rng.expovariate(rate * (0.5 if turn % 2 == 0 else 2.0))
        turn += 1
        if start + gap < turn * TURN_S:
            return start + gap - now
        start = turn * TURN_S
