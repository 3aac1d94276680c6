"""Drafted tokens that several processes verify together give the tokens of one process without drafts."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.build import build, follow_leader
from engine.core.commands import Command, Decode
from engine.core.report import StepReport
from engine.group.links import Link
from engine.group.pipeline import Pipeline
from engine.group.remote.group import RemoteLeader
from engine.model.model import load_model
from engine.model.parallel.stage import Stage
from scheduling.request import SamplingParams, StopRules
from scheduling.speculation import Drafter
from tests.engine.group_driver import CPU, apart, grouped, staged
from tests.engine.loop_driver import FREE_DRAFTS, GREEDY, spec
from tests.engine.real_engine import Engine
from tests.engine.small_settings import small_settings
from tests.model_zoo import stock_generate

PROMPTS = [[5], list(range(3, 20)), [7, 9] * 9, [60, 50, 40, 30], list(range(3, 32))]
RANDOM = SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=0.4, seed=5)
# With few tokens to choose from the model repeats itself, so that drafts by lookup are accepted.
SAMPLINGS = [GREEDY, replace(GREEDY, allowed_token_ids=(3, 4, 5)), RANDOM]


def asked() -> list[Command]:
    stop = StopRules(40, ignore_eos=True)
    return [
        Decode(spec(handle, prompt, stop=stop, sampling=SAMPLINGS[handle % len(SAMPLINGS)]))
        for handle, prompt in enumerate(PROMPTS * 2)
    ]


def accepted(engine: Engine, drafter: Drafter) -> int:
    found = [report.drafts[drafter].accepted for report in engine.reports if drafter in report.drafts]
    return sum(found)


@pytest.mark.parametrize(
    ("name", "split_by"),
    [
        ("llama", staged),
        ("gemma2", staged),
        ("qwen3_moe", partial(staged, num_parts=2)),
        ("gpt2", grouped),
        ("llama", apart),
    ],
    ids=["stages", "stages-gemma2", "parts-of-stages", "parts", "parts-apart"],
)
def test_drafts_change_nothing(name: str, split_by: Any, zoo: Callable[[str], Path]) -> None:
    """Drafts by lookup and, behind them, those of the model itself, which is computed whole by the leader."""
    whole = load_model(zoo(name), torch.float64, CPU)
    plain = Engine(whole)
    plain.finish(*asked())
    with split_by(zoo(name), torch.float64, 2) as runner:
        group = runner._group
        engine = Engine(
            runner.model,
            cost=FREE_DRAFTS,
            speculates=True,
            draft=whole,
            runner=runner,
            stages=group if isinstance(group, Pipeline) else None,
            on_allocated=group.on_allocated if isinstance(group, RemoteLeader) else None,
        )
        engine.finish(*asked())
        engine.loop.check_integrity()
    for handle in range(2 * len(PROMPTS)):
        assert engine.tokens(handle) == plain.tokens(handle)
    assert min(accepted(engine, drafter) for drafter in Drafter) > 10


def test_stages_are_built_with_a_draft_model(zoo: Callable[[str], Path]) -> None:
    """The leader alone loads and measures it, over a pool of its own, with the group's memory for KV."""
    first, second = (
        small_settings(
            zoo("llama"), dtype=torch.float64, stage=Stage(rank, 2), draft_model=draft, kv_memory_mb=1
        )
        for rank, draft in enumerate((zoo("gemma2"), None))
    )
    own, theirs = Link.pair()
    with ThreadPoolExecutor(1) as threads:
        following = threads.submit(follow_leader, second, theirs)
        # One after the other: transformers sets torch's default dtype, for all threads, while it loads.
        while not own.has_message() and not following.done():
            time.sleep(0.01)
        pipeline = Pipeline([own])
        built = build(first, group=pipeline)
        reports: list[StepReport] = []
        asked = [Decode(spec(1, range(3, 12), stop=StopRules(40, ignore_eos=True)))]
        built.loop.run(
            lambda _: [asked.pop()] if asked else [],
            reports.append,
            lambda: any(each.freed for each in reports),
        )
        pipeline.close()
        own.close()
    theirs.close()
    expected = stock_generate(zoo("llama"), list(range(3, 12)), 40).tokens
    assert [token for each in reports for token in each.tokens.token_ids] == expected
