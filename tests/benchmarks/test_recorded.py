from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fleets.recorded import (
    TRACE_SUFFIX,
    Window,
    costs,
    step_samples,
    timed_steps,
    trace,
    write_traces,
)
from router.core.core import RouterCore
from router.core.model.events import Arrived, Event, StepReported, WorkerFacts, WorkerJoined, WorkerLoad
from router.core.model.state import CoreConfig
from router.replay.recording import footer, header, line
from router.request import Request
from scheduling.columns import TokenColumns
from scheduling.cost_model import CostModel, StepShape
from scheduling.request import SamplingParams, Slo, SloClass, StopRules
from sim.workloads.formats.reading import FORMATS, requests
from sim.workloads.trace import TraceRequest

COST = CostModel((1e-3, 1e-5, 1e-6, 0.0, 0.0, 0.0), 0.0)
FACTS = WorkerFacts("decode-0", "i1", "decode", "127.0.0.1:1", "f", 16, 100, 8, 256)


def arrived(number: int, at: float, *, max_tokens: int = 7, ignore_eos: bool = True) -> Arrived:
    return Arrived(
        listener=number,
        request=Request(
            tenant="a/b",
            request_id=f"r{number}",
            session=0,
            digest=b"",
            prompt_token_ids=tuple(range(10 * number)),
            sampling=SamplingParams(),
            seed_given=True,
            stop=StopRules(max_tokens, ignore_eos=ignore_eos),
            slo=Slo(ttft_ms=500, slo_class=SloClass.INTERACTIVE),
            received_at=at,
        ),
    )


def step(num_decodes: int, prefill: int) -> StepReported:
    shape = StepShape.of(num_decodes, 0, [(0, prefill)] if prefill else [])
    return StepReported("decode-0:i1", TokenColumns(), WorkerLoad(), step_s=0.01, shape=shape)


def write(path: Path, events: list[tuple[float, Event]]) -> Path:
    config = CoreConfig("router-0")
    core = RouterCore(config)
    lines = [header(config), *(line(event, now, core.on(event, now)) for now, event in events)]
    path.write_text("".join([*lines, footer(len(events))]))
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    idle = replace(step(0, 0), shape=None, step_s=0.0)
    newer = replace(step(3, 0), cost=replace(COST, knee_tokens=64.0))
    return write(
        tmp_path / "log",
        [
            (1.0, WorkerJoined(FACTS, WorkerLoad(), COST)),
            (2.0, arrived(1, 2.0)),
            (3.0, step(2, 64)),
            (3.5, idle),
            (4.0, arrived(2, 3.9, max_tokens=9, ignore_eos=False)),
            (5.0, newer),
        ],
    )


def test_steps_are_told_with_what_they_computed(recording: Path) -> None:
    steps = list(timed_steps(recording))
    assert [(entry.at_s, entry.worker_id, entry.step_s) for entry in steps] == [
        (3.0, "decode-0", 0.01),
        (5.0, "decode-0", 0.01),
    ]
    (sample,) = step_samples(steps, Window(2.5, 4.5))
    assert (sample.at_s, sample.num_decodes, sample.prefill_tokens) == (0.5, 2, 64)


def test_a_step_lasts_from_the_report_before_it_where_there_was_work(tmp_path: Path) -> None:
    busy = replace(step(1, 0), load=WorkerLoad(running=1))
    idle = replace(step(1, 0), load=WorkerLoad())
    reports = [(3.0, busy), (3.013, busy), (3.2, busy), (3.201, idle), (5.0, busy)]
    path = write(tmp_path / "log", [(1.0, WorkerJoined(FACTS, WorkerLoad(), COST)), *reports])
    # The third's pause made the fourth's report come at once; before the last there was nothing to do.
    lasted = [round(timed_step.lasted_s, 6) for timed_step in timed_steps(path)]
    assert lasted == [0.01, 0.013, 0.187, 0.001, 0.01]


def test_the_last_cost_of_a_worker_counts(recording: Path) -> None:
    assert costs(recording)["decode-0"].knee_tokens == 64.0


def test_requests_become_a_trace_that_starts_with_the_first(recording: Path) -> None:
    _, (first, second) = trace(recording)
    assert first == TraceRequest(0.0, 10, 7, "interactive", ttft_ms=500, tenant="a/b")
    assert (second.at_s, second.prompt_tokens, second.max_tokens) == (pytest.approx(1.9), 20, 9)
    assert trace(recording, Window(3.0, 9.0))[1][0].prompt_tokens == 20


def test_a_recording_that_is_decided_otherwise_gives_no_trace(recording: Path) -> None:
    lines = recording.read_text().splitlines(keepends=True)
    other = RouterCore(CoreConfig("router-0")).on(arrived(5, 1.0), 1.0)
    lines[2] = line(arrived(1, 2.0), 2.0, other)
    recording.write_text("".join(lines))
    with pytest.raises(ValueError, match="line 3 is decided differently now"):
        trace(recording)


def test_a_trace_is_left_beside_the_recording_and_can_be_simulated(recording: Path) -> None:
    log = recording.rename(recording.with_suffix(".jsonl"))
    write_traces({"slack": log}, began_s=0.0)
    lines = log.with_suffix(TRACE_SUFFIX).read_text().splitlines()
    assert tuple(requests(lines, FORMATS["baton"])) == trace(log)[1]
