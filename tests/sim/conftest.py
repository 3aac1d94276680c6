"""A small worker on paper, and traces for it."""

import random

import pytest

from scheduling.cost.profiles import Profile
from scheduling.cost_model import CostModel
from sim.workloads.trace import TraceRequest

COST = CostModel((0.004, 2e-5, 3e-5, 4e-8, 1e-9, 3e-8), 64.0, 0.9, 1.0, 1.2)


@pytest.fixture(scope="session")
def profile() -> Profile:
    return make_profile()


def make_profile(*, num_blocks: int = 4000, max_num_seqs: int = 64, cost: CostModel = COST) -> Profile:
    return Profile(
        name="small",
        model_name="small",
        block_size=16,
        kv_bytes_per_token=4096,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        token_budget=512,
        max_context=8192,
        cost=cost,
        handoff_bytes_per_s=1e9,
        swap_bytes_per_s=1e9,
        host="none",
    )


def make_trace(
    count: int,
    rate: float,
    seed: int = 0,
    *,
    ttft_ms: int | None = None,
    tpot_ms: int | None = None,
    itl_ms: int | None = None,
    shared: bool = False,
    slack_tokens: int = 0,
) -> tuple[TraceRequest, ...]:
    """Poisson arrivals; prompts of 1 to 900 tokens, outputs of 1 to 120."""
    draw = random.Random(seed)
    at_s, requests = 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(rate)
        prompt, output = draw.randint(1, 900), draw.randint(1, 120)
        places = tuple(draw.randrange(3) for _ in range(min(2, prompt // 100))) if shared else ()
        requests.append(
            TraceRequest(
                at_s,
                prompt,
                output,
                draw.choice(("interactive", "standard", "batch")),
                ttft_ms,
                tpot_ms,
                itl_ms,
                tenant=draw.choice(("", "a")),
                shared_blocks=places,
                shared_block_tokens=100 if places else 0,
                max_tokens=output + slack_tokens if slack_tokens else None,
            )
        )
    return tuple(requests)
