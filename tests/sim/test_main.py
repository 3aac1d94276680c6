"""The commands print tables and JSON, and say what would be accepted if an argument is wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sim.__main__ import main
from sim.workloads.formats.baton import dump
from tests.sim.conftest import make_trace

SMALL = ["--duration-s", "4", "--rate", "4"]


def test_policies_come_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    typed = ["simulate", "--policy", "static,slack", "--fleet", "1p1d", "--json", str(out), *SMALL]
    assert main(typed) == 0
    shown = capsys.readouterr().out
    rows = [
        "static aggregated 2d",
        "slack aggregated 2d",
        "slack disaggregated 1p1d",
        "slack conditional 1p1d",
    ]
    assert all(row in shown for row in rows)
    document = json.loads(out.read_text())
    assert [run["policy"] for run in document["runs"]] == ["static", "slack", "slack", "slack"]
    assert all(run["metrics"]["requests"] > 0 for run in document["runs"])


def test_a_recorded_trace_is_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded, out = tmp_path / "trace.jsonl", tmp_path / "out.json"
    recorded.write_text("".join(dump(make_trace(20, 10.0))))
    assert main(["simulate", "--trace", str(recorded), "--fleet", "1d", "--json", str(out)]) == 0
    (run,) = json.loads(out.read_text())["runs"]
    assert run["metrics"]["finished"] == 18  # the first tenth warms up


def test_a_page_of_a_trace_tells_of_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded, out, told = (tmp_path / name for name in ("night.trace.jsonl", "page.html", "out.json"))
    trace = make_trace(20, 10.0)
    asked = [
        replace(entry, ttft_ms=(300, 900, None)[place % 3], tpot_ms=40) for place, entry in enumerate(trace)
    ]
    recorded.write_text("".join(dump(asked)))
    typed = ["simulate", "--trace", str(recorded), "--fleet", "1d", "--report", str(out), "--json", str(told)]
    assert main(typed) == 0
    promise = "TTFT 300 to 900 ms (median 600) by 14 requests, TPOT 40 ms by all requests"
    assert f"promise: {promise}" in capsys.readouterr().out
    text = out.read_text()
    assert "<h1>night.trace.jsonl on h200-llama-3.1-8b, simulated</h1>" in text
    for name, said in (
        ("trace", str(recorded)),
        ("requests", "20, first tenth dropped"),
        ("arrivals", f"as recorded, over {trace[-1].at_s - trace[0].at_s:.4g} s"),
        ("promise", promise),
    ):
        assert f"<th>{name}</th><td>{said}</td>" in text
    assert "poisson" not in text + told.read_text()
    assert json.loads(told.read_text())["trace"]["tpot"] == {
        "requests": 20, "least_ms": 40, "median_ms": 40, "most_ms": 40,
    }  # fmt: skip


def test_a_plan_names_the_cheapest_and_why_one_less_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    typed = ["plan", "--rate", "14", "--goodput", "0.9", "--ttft-ms", "1500", "--tpot-ms", "60"]
    assert main([*typed, "--policy", "chunked", "--duration-s", "8", "--json", str(out)]) == 0
    found = json.loads(out.read_text())["found"]
    assert found["best"]["good"] >= 0.9
    assert found["most_rate_per_s"] >= 14
    assert "cheapest: " in capsys.readouterr().out


def test_a_fleet_that_may_not_be_large_enough_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--rate", "60", "--duration-s", "3", "--max-workers", "1"]) == 1
    assert "no fleet of up to 1 workers" in capsys.readouterr().out


def test_a_page_shows_every_rate_and_the_steps_of_the_highest(tmp_path: Path) -> None:
    out, told = tmp_path / "page.html", tmp_path / "out.json"
    typed = ["simulate", "--policy", "slack", "--fleet", "1d", "--duration-s", "4", "--rate", "6,3"]
    assert main([*typed, "--seeds", "2", "--report", str(out), "--json", str(told)]) == 0
    runs = json.loads(told.read_text())["runs"]
    assert [(run["rate_per_s"], run["seed"]) for run in runs] == [(3, 0), (3, 1), (6, 0), (6, 1)]
    text = out.read_text()
    assert text.count("<svg") == 1 + 2 + 2  # goodput, latencies for each rate, how busy and with what
    assert "decode-0: prompt tokens" in text
    assert "workers busy" in text


def test_a_plan_leaves_a_page_with_its_answer(tmp_path: Path) -> None:
    out = tmp_path / "plan.html"
    typed = ["plan", "--rate", "60", "--duration-s", "3", "--max-workers", "1", "--report", str(out)]
    assert main(typed) == 1
    assert "none of up to 1 workers holds" in out.read_text()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--policy", "magic"], "policy is 'magic'; accepted: "),
        (["--placement", "nowhere"], "argument --placement: 'nowhere' is not accepted: aggregated"),
        (["--fleet", "2x"], "argument --fleet: fleet is '2x'; accepted: like 2p4d"),
        (["--rate", "-1"], "argument --rate: '-1' is not accepted: a number above 0"),
        (["--rate", "nan"], "argument --rate: 'nan' is not accepted"),
        (["--duration-s", "0"], "argument --duration-s: '0' is not accepted"),
        (["--profile", "abacus"], "argument --profile: profile is 'abacus'; accepted: "),
        (["--arrivals", "sometimes"], "arrivals is 'sometimes'; accepted: poisson"),
        (["--tpot-ms", "1"], "tpot is 1 ms; accepted: more"),
        (["--trace", "nowhere.jsonl"], "trace nowhere.jsonl cannot be read"),
        (["--trace", "/dev/null"], "trace /dev/null, line 1: the line is None; accepted: at least one"),
        (["--trace", "a", "--workload", "mixed"], "argument --workload: not allowed with argument --trace"),
        (["--trace", "a", "--trace-format", "b"], "argument --trace-format: invalid choice: 'b'"),
        (["--trace", "a", "--speed", "0"], "argument --speed: '0' is not accepted: a number above 0"),
        (["--trace", "a", "--from", "-1"], "argument --from: '-1' is not accepted: a number from 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["simulate", *typed])
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    err = capsys.readouterr().err
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_a_damaged_trace_is_refused_by_line_and_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = list(dump(make_trace(3, 10.0)))
    damaged = tmp_path / "trace.jsonl"
    damaged.write_text(lines[0] + lines[2])
    assert main(["simulate", "--trace", str(damaged)]) == 2
    assert "line 2: index is 2; accepted: 1: a trace has no holes" in capsys.readouterr().err
