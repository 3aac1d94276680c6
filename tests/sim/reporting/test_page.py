"""A page stands alone, says what was measured and draws every arm."""

from __future__ import annotations

import math
import random
from html.parser import HTMLParser

import pytest

from baton import Slo
from benchmarks.doors.metrics import RequestRecord, summarise
from sim.reporting.page import page
from sim.reporting.plots import COLOURS, looks
from sim.reporting.results import Results, Run, StepSample
from sim.reporting.timeline import UTILISATION_BINS, busiest, busy_shares

ARMS = ("static", "dynamic", "orca", "prefill_first", "chunked", "slack/conditional & <more>")


def run(arm: str, rate: float, seed: int) -> Run:
    rng = random.Random(f"{arm}:{rate}:{seed}")
    records = []
    for place in range(30):
        one = RequestRecord(place / 5, 10, 3, Slo(ttft_ms=500))
        one.ttft_s, one.tpot_s = rng.random(), rng.random() / 50
        one.token_times = [one.sent_at + one.ttft_s + k * one.tpot_s for k in range(3)]
        one.finished_at = one.token_times[-1]
        records.append(one)
    ttft, tpot = ([getattr(record, name) or 0.0 for record in records] for name in ("ttft_s", "tpot_s"))
    steps = tuple(StepSample(k / 50, 0.01, f"decode-{k % 2}", k % 9, 64 * (k % 3)) for k in range(200))
    return Run(arm, rate, seed, summarise(records), 0.0, 6.0, tuple(ttft), tuple(tpot), steps)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []
        self.above: dict[str, set[str]] = {}
        """By tag, the classes of the elements that it lies directly in."""
        self._classes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag in ("meta", "wbr"):
            return
        self.above.setdefault(tag, set()).add(self._classes[-1] if self._classes else "")
        self.open.append(tag)
        self._classes.append(dict(attrs).get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._classes.pop()


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_page_draws_every_arm_and_needs_nothing_else(count: int) -> None:
    arms = ARMS[-count:]
    runs = [run(arm, rate, seed) for arm in arms for rate in (4.0, 8.0) for seed in (1, 2)]
    text = page(Results("chat", {"commit": "abc <1>"}, tuple(runs)))
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.seen.count("svg") == 1 + 2 + 2 * count  # goodput, latencies per rate, two timelines per arm
    assert tags.seen.count("script") == 0
    assert all(link.startswith("#") for link in tags.links), "something is fetched from elsewhere"
    assert "slack/conditional &amp; &lt;more&gt;" in text
    assert "abc &lt;1&gt;" in text


def test_what_is_wider_than_the_page_scrolls_by_itself() -> None:
    runs = tuple(run(arm, 4.0, seed) for arm in ARMS for seed in (1, 2))
    text = page(Results("chat", {"commit": "abc"}, runs))
    tags = Tags()
    tags.feed(text)
    assert tags.above["table"] == tags.above["svg"] == {"wide"}
    assert ".wide { overflow-x: auto" in text
    assert 'name="viewport" content="width=device-width' in text


def test_one_rate_is_a_bar_for_each_arm() -> None:
    text = page(Results("chat", {}, tuple(run(arm, 4.0, 1) for arm in ARMS[:3])))
    assert "<h2>Goodput</h2>" in text
    drawn = text[text.index("<h2>Goodput</h2>") : text.index("<h2>At 4 requests/s</h2>")]
    assert all(f">{arm}</text>" in drawn for arm in ARMS[:3])
    assert "capacity" not in drawn, "one rate does not say where the capacity is"
    several = page(Results("chat", {}, tuple(run("slack", rate, 1) for rate in (4.0, 8.0))))
    assert "<h2>Goodput against rate</h2>" in several


def test_only_several_seeds_have_a_median() -> None:
    one, two = (tuple(run("slack", 4.0, seed) for seed in seeds) for seeds in ((1,), (1, 2)))
    assert "median over seeds" not in page(Results("chat", {}, one))
    assert "median over seeds" in page(Results("chat", {}, two))


def test_arrivals_all_at_once_have_no_goodput_curve() -> None:
    text = page(Results("burst", {}, (run("slack", math.inf, 1),)))
    assert "All at once" in text
    assert "Goodput against rate" not in text


def test_an_empty_measurement_has_no_page() -> None:
    with pytest.raises(ValueError, match="runs is empty"):
        page(Results("chat", {}, ()))


def test_arms_differ_in_more_than_colour() -> None:
    drawn = looks([str(number) for number in range(12)])
    assert len({(entry.colour, entry.dash) for entry in drawn.values()}) == 12
    assert len({entry.marker for entry in list(drawn.values())[:6]}) == len(COLOURS)


def test_the_busiest_second_is_where_most_prompt_tokens_were() -> None:
    calm = [StepSample(k / 10, 0.1, "w", 1, 0) for k in range(100)]
    steps = [*calm, StepSample(7.05, 0.05, "w", 1, 256), StepSample(7.5, 0.1, "w", 1, 256)]
    assert 6.0 <= busiest(steps) <= 7.05


def test_a_step_is_busy_time_in_every_part_that_it_lasted_in() -> None:
    busy = busy_shares([StepSample(2.5, 2.0, "w", 1, 0)], 1.0)
    assert busy[:4] == [0.5, 1.0, 0.5, 0.0]
    assert len(busy) == UTILISATION_BINS
