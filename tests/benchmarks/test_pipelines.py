"""Bubbles by policy, measured small: chunks keep stages busy that whole prompts leave idle."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from benchmarks.claims.cells import cell, estimate
from benchmarks.claims.play import Case
from benchmarks.pipelines import MOST_BUBBLES, RULE_ALONE, Run, arm_of, play
from scheduling.policies.policy import Policy

SPAN_S = 6.0


def played(policy: str | Policy) -> Run:
    promises = cell("mixed", 2.5, 25.0).promises
    rate = 1.3 * 4 * estimate("mixed", promises.tpot_ms)
    return play(Case(arm_of(policy, 4), "mixed", rate, promises, span_s=SPAN_S))


def test_chunks_lose_little_to_bubbles_where_whole_prompts_lose_much() -> None:
    orca, chunked, slack = played("orca"), played("chunked"), played(RULE_ALONE)
    assert orca.bubbles > 0.15
    assert chunked.bubbles < MOST_BUBBLES
    assert slack.bubbles < MOST_BUBBLES


def test_a_worker_without_stages_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipelines", "--stages", "1"]) == 2
    assert "stages is 1; accepted: numbers from 2" in capsys.readouterr().err
