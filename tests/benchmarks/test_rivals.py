"""All policies beside one another: what is offered, and the file of runs that the command goes on from."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.rivals.cases import Case, Outcome, cases
from benchmarks.rivals.conversations import BLOCK_TOKENS, conversations
from benchmarks.rivals.runs import Runs
from benchmarks.rivals.situations import SIZES, situations
from benchmarks.rivals.tables import contests, sections
from scheduling.policies import NAMES
from sim.workload import Promises

CASE = Case("balanced", 2, 1.0, "slack", "aggregated", "2d", None, 1)
OUTCOME = Outcome(20.0, 100, 10.0, 0.5, 0.2, 0.1, 0.995, 0.2, 1.0, "abc")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a recorded trace of forty requests."""
    path = tmp_path / "forty.jsonl"
    request = {"input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
    rows = [{"timestamp": 200 * place, **request} for place in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_no_run_is_played_twice(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, means, plot = tmp_path / "rows.jsonl", tmp_path / "means.csv", tmp_path / "plot.svg"
    command = [
        "rivals", "--rows", str(rows), "--traces", str(trace), "--situations", "forty",
        "--policies", "slack,chunked", "--loads", "0.2,0.4", "--seeds", "1",
        "--means", str(means), "--plot", str(plot),
    ]  # fmt: skip
    assert main(command) == 0
    once = rows.read_text()
    assert len(once.splitlines()) == 2 * 5  # at two loads, slack in three placements and chunked in two
    assert "| forty | 4d | 0.2 × |" in capsys.readouterr().out
    with means.open() as file:
        assert {row["policy"] for row in csv.DictReader(file)} == {"slack", "chunked"}
    assert "forty, 4 workers" in plot.read_text()

    rows.write_text("".join(once.splitlines(keepends=True)[:-1]) + '{"situation": "fo')  # it was stopped
    assert main(command) == 0
    again = rows.read_text()
    assert again.splitlines()[:-1] == once.splitlines()[:-1]
    assert len(again.splitlines()) == len(once.splitlines())


def test_a_file_that_has_no_runs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({**asdict(CASE), **asdict(OUTCOME)}) + '\n{"situation": "balanced"}\n')
    assert main(["rivals", "--rows", str(rows)]) == 2
    assert f"{rows}, line 2 is no run" in capsys.readouterr().err


def test_an_unknown_situation_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rivals", "--situations", "balanced,calm"]) == 2
    assert "situation is 'calm'; accepted: balanced, tight TTFT" in capsys.readouterr().err


def test_every_policy_meets_every_situation() -> None:
    every = list(cases(list(situations().values()), "all", (1.0,), (1, 2)))
    assert len(every) == len(set(every))
    for situation in situations().values():
        own = [case for case in every if case.situation == situation.name and case.seed == 2]
        assert {case.policy for case in own} == set(NAMES)
        assert {case.num_workers for case in own} == set(situation.sizes) <= set(SIZES)


@pytest.mark.parametrize("name", ["balanced", "tight TTFT", "tight TPOT", "three classes", "lengths shift"])
def test_requests_come_at_the_rate_of_the_load(name: str) -> None:
    situation = situations()[name]
    rate = situation.rate_per_s(4, 1.0)
    assert rate == pytest.approx(4 * situation.rate_per_s(1, 1.0))
    drawn = situation.draw(rate, 100.0, 3)
    assert len(drawn) == pytest.approx(100 * rate, rel=0.2)
    assert all(request.tpot_ms and request.ttft_ms for request in drawn)


def test_limits_are_off_by_as_much_as_their_name_says() -> None:
    for share in (0.3, 0.6):
        drawn = situations()[f"limits {share:.0%} off".replace("%", " %")].draw(50.0, 60.0, 1)
        over = [(request.max_tokens or 0) / request.output_tokens - 1 for request in drawn]
        assert min(over) >= -1e-9
        # The mean of a half-normal share is 0.8 of its deviation.
        assert sum(over) / len(over) == pytest.approx(0.8 * share, rel=0.1)


def test_turns_of_a_conversation_share_what_was_said_before() -> None:
    drawn = conversations(10.0, 200.0, 5, Promises(400, 25))
    assert len(drawn) == pytest.approx(10 * 200, rel=0.2)
    assert [request.at_s for request in drawn] == sorted(request.at_s for request in drawn)
    assert drawn == conversations(10.0, 200.0, 5, Promises(400, 25))
    turns: dict[int, list[tuple[int, ...]]] = {}
    for request in drawn:
        assert 0 < request.prompt_tokens - BLOCK_TOKENS * (len(request.shared_blocks) - 1) <= BLOCK_TOKENS
        turns.setdefault(request.shared_blocks[0], []).append(request.shared_blocks)
    later = [pair for own in turns.values() for pair in itertools.pairwise(own)]
    assert len(later) > len(turns)
    assert all(next_blocks[: len(blocks)] == blocks for blocks, next_blocks in later)


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Runs(path).add(CASE, OUTCOME)
    assert Runs(path).outcomes == {CASE: OUTCOME}


def test_slack_is_judged_by_the_best_other_arm_of_the_cell() -> None:
    outcomes = {
        replace(CASE, policy=policy, placement=placement, fleet=fleet, seed=seed): replace(
            OUTCOME, good_per_s=good + seed
        )
        for policy, placement, fleet, good in (
            ("slack", "aggregated", "2d", 9.0),
            ("orca", "aggregated", "2d", 4.0),
            ("qoserve", "aggregated", "2d", 19.0),
            ("slack", "disaggregated", "1p1d", 5.0),
            ("slack", "conditional", "1p1d", 9.0),
            ("chunked", "disaggregated", "1p1d", 5.0),
        )
        for seed in (1, 2, 3)
    }
    whole, split = contests(outcomes)
    assert (whole.ours, whole.best_other) == ("slack aggregated", "qoserve aggregated")
    assert whole.to_best_other(whole.ours) == pytest.approx((10 / 20, 11 / 21, 12 / 22))
    assert (split.ours, split.best_other) == ("slack conditional", "chunked disaggregated")
    cells, arms = sections(outcomes)
    worst, kept = cells.goals
    assert not worst.is_met
    assert worst.claim.endswith("(balanced, 2d, 1 ×)")
    assert kept.is_met
    assert "| orca aggregated | 0.29 | 0.29 |" in arms.markdown()
