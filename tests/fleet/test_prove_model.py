"""A fleet serves a model off the list, once its workers have proven it."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton import AsyncClient, Sampling, Stop
from baton.fleet import Fleet
from tests import model_zoo
from tests.fleet.driving import exact
from tests.forked import Zygote

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

PROMPT = list(range(3, 40))
LENGTH = 40


async def test_outputs_are_those_of_stock_transformers(zygote: Zygote, tmp_path: Path) -> None:
    model = model_zoo.build("cohere2", tmp_path / "cohere2")
    spec = exact(tmp_path / "run", model=model, prove_model=True, placement="disaggregated")
    async with Fleet(spec, make_process=zygote.process) as fleet:
        async with AsyncClient(fleet.router_addresses) as client:
            stop = Stop(max_tokens=LENGTH, ignore_eos=True)
            completion = await client.complete(PROMPT, sampling=Sampling(temperature=0.0), stop=stop)
        logs = [path.read_text(encoding="utf-8") for path in (tmp_path / "run").rglob("*decode-0*.log")]
    (choice,) = completion.choices
    assert list(choice.token_ids) == model_zoo.stock_generate(model, PROMPT, LENGTH).tokens
    assert any("model_proven" in log for log in logs)
