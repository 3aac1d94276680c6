"""Through router, prefill, handoff and decode: the tokens of stock transformers, for every family.

In fp64, where sameness is no luck. One fleet serves both paths: the first router disaggregates over two
prefill workers that differ in chunk size and transport, the second lets the decode worker prefill itself.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton import AsyncClient
from baton.fleet import Fleet, FleetSpec
from tests.fleet.conftest import MakeFleet
from tests.fleet.driving import Answer, assert_all_is_freed, greedy, labelled, metric
from tests.model_zoo import CASES, VOCAB_SIZE, Generated, build, stock_generate

pytestmark = pytest.mark.integration

MAX_TOKENS = 9
BLOCK_SIZE = 4
# Below, at and above block and chunk borders.
PROMPT_LENGTHS = (1, 3, 4, 7, 11, 16, 23, 41)
# Logprobs travel as 32-bit floats; those of the engine and of the reference differ by less.
LOGPROB_TOLERANCE = 1e-5

SENDERS = {"shm": "prefill-0", "grpc": "prefill-1"}
# As many sequences as there are prompts: each worker measures steps up to that size when it starts.
SIZES = ("--block-size", str(BLOCK_SIZE), "--num-blocks", "256", "--max-num-seqs", str(len(PROMPT_LENGTHS)))
SPEC_ARGS = {
    "router-0": ("--placement", "disaggregated"),
    "router-1": ("--placement", "aggregated"),
    "prefill": ("--dtype", "float64", *SIZES),
    "decode": ("--dtype", "float64", *SIZES, "--token-budget", "13"),
    "prefill-0": ("--transport", "shm", "--token-budget", "24"),
    "prefill-1": ("--transport", "grpc", "--token-budget", "7"),
}


def prompts(seed: int = 7) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in PROMPT_LENGTHS]


async def transports_used(fleet: Fleet) -> set[str]:
    sent = await labelled(fleet, "decode-0", "baton_kv_bytes_total", "transport")
    return {transport for transport, num_bytes in sent.items() if num_bytes > 0}


def expect(model: Path, asked: list[list[int]]) -> list[Generated]:
    return [stock_generate(model, prompt, MAX_TOKENS) for prompt in asked]


def assert_same(found: list[Answer], expected: list[Generated]) -> None:
    assert [list(entry.token_ids) for entry in found] == [entry.tokens for entry in expected]
    for entry, other in zip(found, expected, strict=True):
        chosen = other.logits.log_softmax(-1).gather(1, torch.tensor(other.tokens)[:, None])[:, 0]
        assert entry.logprobs == pytest.approx(chosen.tolist(), abs=LOGPROB_TOLERANCE)


# All families are compared with stock transformers in tests/engine/model, and here by `make test-long`.
ALWAYS = ("gemma2", "gpt_oss", "llama_tied", "qwen3_moe")
FAMILIES = [pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.long]) for name in CASES]


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_fleet_equals_stock_generate(family: str, tmp_path: Path, make_fleet: MakeFleet) -> None:
    model = build(family, tmp_path / "model")
    asked = prompts()
    expected = expect(model, asked)
    spec = FleetSpec(
        model=model, prefill=2, decode=1, routers=2, extra_args=SPEC_ARGS, run_dir=tmp_path / "run"
    )
    async with make_fleet(spec) as fleet:
        handing_over, by_itself = fleet.router_addresses
        async with AsyncClient(handing_over) as client:
            assert_same(await greedy(client, asked, MAX_TOKENS), expected)
            unused = SENDERS.keys() - await transports_used(fleet)
            for transport in unused:  # one worker was quick enough for all: let the other do it alone
                await client.drain(next(SENDERS[other] for other in SENDERS if other != transport))
                others = prompts(seed=8)
                assert_same(await greedy(client, others, MAX_TOKENS), expect(model, others))
        assert await transports_used(fleet) == SENDERS.keys()

        async with AsyncClient(by_itself) as client:
            before = await metric(fleet, "decode-0", "baton_kv_handoffs_total")
            assert_same(await greedy(client, asked[::-1], MAX_TOKENS), expected[::-1])
            again = await greedy(client, asked, MAX_TOKENS)
            assert_same(again, expected)
            assert sum(entry.cached_prompt_tokens for entry in again) > 0
            assert await metric(fleet, "decode-0", "baton_kv_handoffs_total") == before
            await assert_all_is_freed(fleet, client)


FEATURES = [
    (name, feature)
    for name, case in CASES.items()
    for feature in ("window", "softcap", "sinks")
    if getattr(case, feature)
]


@pytest.mark.parametrize(("family", "feature"), FEATURES)
def test_the_comparison_would_notice_a_missing_feature(family: str, feature: str, tmp_path: Path) -> None:
    model = build(family, tmp_path / "model")
    lacking = without(feature, model, tmp_path / "lacking")
    asked = prompts()
    assert [entry.tokens for entry in expect(model, asked)] != [
        entry.tokens for entry in expect(lacking, asked)
    ]


def without(feature: str, model: Path, target: Path) -> Path:
    """The same model with one feature of its attention taken out."""
    shutil.copytree(model, target)
    if feature == "sinks":
        weights = load_file(target / "model.safetensors")
        for name in weights:
            if "sinks" in name:
                weights[name].fill_(-1e9)  # e to the power of it: no share of the softmax
        save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
        return target
    config = json.loads((target / "config.json").read_text())
    if feature == "window":
        config["sliding_window"] = 10 * config["max_position_embeddings"]
    else:
        config["attn_logit_softcapping"] = None
    (target / "config.json").write_text(json.dumps(config))
    return target
