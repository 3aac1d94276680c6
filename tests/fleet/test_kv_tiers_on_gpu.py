"""Prefixes that a GPU's memory has no room for come back from host memory and the disk, bit for bit.

    python -m pytest -m gpu tests/fleet/test_kv_tiers_on_gpu.py

Workers are deterministic, so what they answer does not depend on how much of a prompt was read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from baton.fleet import Fleet, FleetSpec
from tests.fleet.driving import Answer, ask, labelled, until
from tests.fleet.test_kv_disk import num_blocks
from tests.model_zoo import VOCAB_SIZE, save_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.integration, pytest.mark.timeout(1200)]

DEVICE = "cuda"
SHAPE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
}
"""Much to compute for little KV, so that reading pays on a fast GPU, too. The weights take 3.4 GB."""
NUM_TOKENS = 4000
PROMPTS = [[3 + i * step % 89 for i in range(NUM_TOKENS)] for step in (3, 5, 7, 11, 13)]
PROMPT_BLOCKS = NUM_TOKENS // 16
NUM_BLOCKS = PROMPT_BLOCKS * 5 // 2
HOST_MB = 40
"""For more than one prompt, and fewer than two: a block takes 128 KiB."""
START_S = 600.0
"""Without a word: the first start compiles all kernels."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a config and a tokenizer; workers draw the weights."""
    directory = tmp_path_factory.mktemp("models") / "drawn"
    directory.mkdir()
    fixed = {"model_type": "llama", "vocab_size": VOCAB_SIZE, "max_position_embeddings": 8192}
    (directory / "config.json").write_text(json.dumps(fixed | SHAPE), encoding="utf-8")
    save_tokenizer(directory)
    return directory


def spec_of(model: Path, tmp_path: Path, placement: str) -> FleetSpec:
    """Return a fleet with a disk behind the memory of each worker."""
    args = (
        *("--device", DEVICE, "--dtype", "float32", "--random-weights", "1"),
        *("--num-blocks", str(NUM_BLOCKS), "--max-num-seqs", "16", "--token-budget", "512"),
    )
    return FleetSpec(
        model=model,
        prefill=int(placement == "disaggregated"),
        placement=placement,
        deterministic=True,
        kv_disk=tmp_path / "disk",
        extra_args={"prefill": args, "decode": args},
        standstill_s=START_S,
    )


def assert_same(again: list[Answer], firsts: list[Answer]) -> None:
    for place, (later, first) in enumerate(zip(again, firsts, strict=True)):
        assert (later.token_ids, later.logprobs) == (first.token_ids, first.logprobs), f"prompt {place}"


@pytest.mark.parametrize("placement", ["aggregated", "disaggregated"])
async def test_what_left_the_gpu_comes_back_bit_for_bit(model: Path, tmp_path: Path, placement: str) -> None:
    computes = "decode-0" if placement == "aggregated" else "prefill-0"
    spec = spec_of(model, tmp_path, placement)
    async with Fleet(replace(spec, kv_host_memory_mb=HOST_MB, run_dir=tmp_path / "first")) as fleet:
        firsts = await ask(fleet, PROMPTS)
        assert [(first.cached_prompt_tokens, first.attempts) for first in firsts] == [(0, 1)] * len(PROMPTS)

        async def is_written() -> bool:
            return await num_blocks(fleet, computes, "written") >= PROMPT_BLOCKS

        await until(is_written, "a prompt's blocks are on the disk")
        # Those that left last are in host memory, and those before on the disk.
        latest, earliest = await ask(fleet, PROMPTS[2:]), await ask(fleet, PROMPTS[:2])
        again = [*earliest, *latest]
        assert_same(again, firsts)
        in_host = await labelled(fleet, computes, "baton_kv_host_blocks_total", "outcome")
        assert in_host["kept"] > in_host["evicted"] > 0
        assert in_host["read"] > 0
        assert await num_blocks(fleet, computes, "read") > 0
        assert min(answer.cached_prompt_tokens for answer in again) > 0
        for outcomes in (in_host, await labelled(fleet, computes, "baton_kv_disk_blocks_total", "outcome")):
            assert outcomes.get("refused", 0.0) == 0, "a block did not verify"
    async with Fleet(replace(spec, run_dir=tmp_path / "second")) as fleet:
        assert_same(await ask(fleet, PROMPTS), firsts)
        assert await num_blocks(fleet, computes, "read") > 0, "the disk outlives the fleet"
