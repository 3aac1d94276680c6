"""A fleet draws tokens as its model says in generation_config.json, but for what a request or a flag says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from baton import AsyncClient, Sampling, Stop
from baton.fleet import FleetSpec
from tests.fleet.conftest import MakeFleet

pytestmark = pytest.mark.integration
STOP = Stop(max_tokens=12, ignore_eos=True)


@pytest.fixture
def greedy_llama(tiny_llama: Path, tmp_path: Path) -> Path:
    """A model whose makers want the most likely token."""
    model = tmp_path / "greedy"
    shutil.copytree(tiny_llama, model)
    file = model / "generation_config.json"
    stated = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(stated | {"temperature": 0, "top_k": 20}))
    return model


async def text(client: AsyncClient, seed: int, temperature: float | None = None) -> str:
    sampling = Sampling(seed=seed, temperature=temperature)
    return (await client.complete("once upon a", sampling=sampling, stop=STOP)).text


@pytest.mark.parametrize("generation_config", [None, "none"])
async def test_the_model_s_defaults_hold(
    greedy_llama: Path, run_dir: Path, make_fleet: MakeFleet, generation_config: str | None
) -> None:
    spec = FleetSpec(model=greedy_llama, run_dir=run_dir, generation_config=generation_config)
    async with make_fleet(spec) as fleet, AsyncClient(fleet.router_addresses) as client:
        (model,) = await client.models()
        greedy = await text(client, 1, temperature=0.0)
        drawn = [await text(client, seed) for seed in (1, 2)]
        assert await text(client, 1, temperature=1.0) != greedy
    if generation_config is None:
        assert model.default_sampling == Sampling(temperature=0.0, top_k=20)
        assert drawn == [greedy, greedy]
    else:
        assert model.default_sampling == Sampling()
        assert greedy not in drawn
