"""The page of a run has all of it, by request, and needs nothing else."""

from __future__ import annotations

import dataclasses
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.dst.page import page, replay_command, write_page
from tests.dst.promises import Broken
from tests.dst.record import Recorder
from tests.dst.run import Outcome, play, virtual
from tests.dst.scenario import Fault, Request, Scenario, draw, from_json

SCENARIO = Scenario(
    seed=7,
    clients=2,
    requests=(
        Request("q0", 0, 0.8, prompt_tokens=14, max_tokens=12),
        Request("q1", 1, 0.9, prompt_tokens=9, max_tokens=10, n=2),
    ),
    faults=(
        Fault("kill", "r0", lasts_s=0.5, upon=("q0", "decode"), after_s=0.02),
        Fault("half-open", "r1", "d0", lasts_s=9.0, at=0.5),
        Fault("jump", "d1", at=0.7, lasts_s=2.0),
        Fault("cut", "d0", "p0", both=False, at=0.5, upon=("q1", "never")),
        Fault("island", "p0", "decode", at=3.5, lasts_s=0.2),
    ),
)
VOID = {"meta", "br", "input"}


@pytest.fixture(scope="module")
def played() -> tuple[Recorder, Outcome]:
    recorder = Recorder()
    with virtual():
        return recorder, play(SCENARIO, recorder)


@pytest.fixture(scope="module")
def written(played: tuple[Recorder, Outcome]) -> str:
    return page(SCENARIO, *played)


@pytest.fixture(scope="module")
def drawn(written: str) -> dict[str, Any]:
    return data_of(written)


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="run">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


class Tags(HTMLParser):
    """Checks that what is opened is closed, and keeps attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_no_other_file(written: str) -> None:
    tags = Tags(written)
    assert not tags.open
    assert not {"src", "href"} & set(tags.attributes)
    assert not re.search(r"https?:|@import|url\(", written)
    assert "{{" not in written


def test_every_process_has_one_lane_however_often_it_began(drawn: dict[str, Any]) -> None:
    assert [lane["name"] for lane in drawn["lanes"]] == ["c0", "c1", "r0", "r1", "redis", "p0", "d0", "d1"]
    (_, died), (began, lives_on) = next(lane["lives"] for lane in drawn["lanes"] if lane["name"] == "r0")
    assert began == pytest.approx(died + 0.5)
    assert lives_on is None
    assert all(len(lane["lives"]) == 1 for lane in drawn["lanes"] if lane["name"] != "r0")


def test_a_request_has_its_messages_from_its_call_to_its_handoff(drawn: dict[str, Any]) -> None:
    for number in range(2):
        whats = [what for _, _, what, requests, *_ in drawn["messages"] if number in requests]
        for part in (
            "GenerateRequest",
            "enqueue",
            "settle done",
            "SendPrefill",
            "SendReceive",
            "OpenRequest",
        ):
            assert any(what.startswith(part) for what in whats), (part, whats)
        assert any(re.match(r"report: \d+ token", what) for what in whats)
        assert "GenerateResponse: tokens" in whats


def test_what_is_about_one_request_is_not_about_the_other(drawn: dict[str, Any]) -> None:
    accepted = [event for event in drawn["events"] if event[2].startswith("Arrived")]
    assert {tuple(event[3]) for event in accepted} >= {(0,), (1,)}
    assert all(len(event[3]) == 1 for event in accepted)
    about_none = ("heartbeat", "Hello", "renew")
    background = [requests for _, _, what, requests, *_ in drawn["messages"] if what in about_none]
    assert background
    assert not any(background)


def test_messages_arrive_after_they_were_sent_or_never(drawn: dict[str, Any]) -> None:
    lanes = [lane["name"] for lane in drawn["lanes"]]
    lost = set()
    for source, target, _, _, sent, due, taken, unwanted in drawn["messages"]:
        assert taken is None or sent <= due + 1e-6 <= taken + 2e-6
        if taken is None and not unwanted and (due is None or due < drawn["end"]):
            lost.add(frozenset((lanes[source], lanes[target])))
    assert frozenset(("r1", "d0")) in lost
    assert all("r0" in pair or pair == {"r1", "d0"} for pair in lost)


def test_faults_are_bands_over_both_ends(drawn: dict[str, Any]) -> None:
    lanes = [lane["name"] for lane in drawn["lanes"]]
    bands = {band["label"]: band for band in drawn["bands"]}
    assert set(bands) == {"kill r0", "half-open r1 ↔ d0", "jump d1", "island p0 ↔ every decode"}
    assert [lanes[lane] for lane in bands["island p0 ↔ every decode"]["lanes"]] == ["p0", "d0", "d1"]
    assert [lanes[lane] for lane in bands["half-open r1 ↔ d0"]["lanes"]] == ["r1", "d0"]
    assert bands["half-open r1 ↔ d0"]["begin"] == 0.5
    assert bands["jump d1"]["end"] == bands["jump d1"]["begin"]
    phases = [phase for _, _, phase in drawn["phases"][0]]
    assert phases.index("prefill") < phases.index("handoff") < phases.index("decode")


def test_faults_that_did_not_strike_are_named(written: str) -> None:
    assert "<td>did not strike</td><td>the link d0 → p0 is cut</td>" in written


def test_the_promise_that_broke_is_on_top_with_its_time(played: tuple[Recorder, Outcome]) -> None:
    recorder, outcome = played
    broken = Broken("each token once", "q0 read <b> & </script> at place 3")
    html = page(SCENARIO, recorder, dataclasses.replace(outcome, broken=broken))
    assert not Tags(html).open
    assert "<h1>Seed 7 breaks a promise</h1>" in html
    assert f"Broke at {outcome.simulated_s:.4f} s: each token once." in html
    assert "q0 read &lt;b&gt; &amp; &lt;/script&gt; at place 3" in html
    assert data_of(html)["broken"] == {"promise": "each token once", "at": outcome.simulated_s}


def test_the_scenario_on_the_page_is_the_one_that_was_played(written: str) -> None:
    found = re.search(r'<pre id="scenario">(.*?)</pre>', written, re.DOTALL)
    assert found is not None
    assert from_json(unescape(found[1])) == SCENARIO


def test_a_drawn_run_is_replayed_by_its_seed() -> None:
    assert replay_command(draw(18)).endswith("--seed 18")
    assert "--replay run.json" in replay_command(dataclasses.replace(draw(18), faults=()))


@pytest.mark.parametrize("scenario", [SCENARIO, draw(4), draw(18)], ids=["own", "4", "18"])
def test_a_recorder_changes_nothing(scenario: Scenario) -> None:
    with virtual():
        plain, recorded = play(scenario), play(scenario, Recorder())
    assert plain.trace == recorded.trace
    assert (plain.simulated_s, plain.broken) == (recorded.simulated_s, recorded.broken)


def test_a_run_without_requests_and_faults_has_a_page(tmp_path: Path) -> None:
    scenario, recorder = Scenario(1, prefill=0, placement="aggregated"), Recorder()
    with virtual():
        outcome = play(scenario, recorder)
    write_page(tmp_path / "run.html", scenario, recorder, outcome)
    html = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert not Tags(html).open
    assert {"q0", "q1"}.isdisjoint(data_of(html)["requests"])
