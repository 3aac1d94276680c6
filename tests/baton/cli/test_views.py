import asyncio
import io
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from baton.cli.commands.demo import Answer, results, side_by_side
from baton.cli.commands.status import bar, render, show_live
from baton.cli.views.fleet_reporter import FleetReporter
from baton.cli.views.generation_view import MessageView
from baton.fleet.processes.events import (
    FleetStopping,
    ProcessDied,
    ProcessReady,
    ProcessStarted,
    ProcessStarting,
    WorkersJoined,
)
from baton.operators.v1 import fleet_pb2
from baton.types import Finished, Queued, Tokens
from baton.types.deltas import (
    ContentDelta,
    Delta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegun,
    ToolCallEnded,
)
from baton.types.snapshots import FleetFacts
from baton.wire.convert import event_from_pb, from_pb, snapshot_from_pb
from baton.worker.v1 import worker_pb2
from tests.baton.scripted_service import finished as finished_pb


def shown(
    view: RenderableType | Callable[[Console], RenderableType], width: int = 80, height: int = 24
) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(view(console) if callable(view) else view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def finished() -> Finished:
    event = event_from_pb(finished_pb())
    assert isinstance(event, Finished)
    return event


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50), (40, 30)])
def test_answers_side_by_side_fit_the_terminal_and_show_their_ends(width: int, height: int) -> None:
    answers = [Answer("prompt", n > 3, text="word " * 200 + f"END{n}") for n in range(6)]
    lines = shown(lambda console: side_by_side(answers, console), width, height).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    for number in range(len(answers)):
        assert any(f"END{number}" in line for line in lines)


def test_an_answer_follows_its_events() -> None:
    answer = Answer("prompt")
    answer.take(Queued(position=3, work_ahead_tokens=9, predicted_ttft_ms=1))
    assert answer.state == "queued, 3 ahead"
    answer.take(Tokens(0, 0, (1,), "some [bold]text"))
    assert answer.state == "streaming"
    drawn = shown(lambda console: side_by_side([answer], console))
    assert "some [bold]text" in drawn, "what a model writes is never markup"
    answer.take(finished())
    assert answer.state == "done"


def test_results_fit_80_columns_and_show_promised_and_delivered() -> None:
    done, failed = Answer("one"), Answer("two")
    done.take(finished())
    failed.fail("no router could be reached")
    text = shown(results([done, failed]))
    assert max(map(len, text.splitlines())) <= 80
    assert "–→12" in text
    assert "2: no router could be reached" in text
    for heading in ("queue", "prefill", "handoff", "decode", "relay", "tokens", "kept"):
        assert heading in text


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000))
def test_a_bar_is_always_as_wide_and_shows_whatever_is_not_nothing(used: int, cached: int, free: int) -> None:
    drawn = bar(used, cached, used + cached + free, width=12).plain
    assert len(drawn) == 12
    assert ("█" in drawn) == (used > 0)
    if used == 0:
        assert ("▒" in drawn) == (cached > 0)


def test_status_shows_workers_queue_and_promises_in_80_columns() -> None:
    load = worker_pb2.WorkerLoad(running=12, free_blocks=40, cached_blocks=10)
    workers = [
        fleet_pb2.WorkerStatus(
            worker_id="decode-0",
            role=worker_pb2.WORKER_ROLE_DECODE,
            connected=True,
            load=load,
            num_blocks=16384,
            step_seconds=0.0123,
            cost_model=worker_pb2.CostModel(is_trusted=True, ratio_q95=1.234),
        ),
        fleet_pb2.WorkerStatus(worker_id="decode-1", cost_model=worker_pb2.CostModel(ratio_q95=3.0)),
        fleet_pb2.WorkerStatus(worker_id="prefill-0", role=worker_pb2.WORKER_ROLE_PREFILL),
    ]
    counters = fleet_pb2.Counters(accepted=9, ttft_promises_broken=2, refused=1)
    queue = fleet_pb2.QueueStatus(waiting=3, capacity=1024, redis_reachable=False)
    snapshot = fleet_pb2.WatchResponse(workers=workers, counters=counters, queue=queue, uptime_s=3700)
    facts = fleet_pb2.DescribeResponse(model_name="demo", block_size=16)
    text = shown(render(from_pb(FleetFacts, facts), snapshot_from_pb(snapshot), ["http://127.0.0.1:8000"]))
    assert max(map(len, text.splitlines())) <= 80
    assert "http      http://127.0.0.1:8000" in text
    assert "12.3 ms" in text
    assert text.index("prefill-0") < text.index("decode-0")
    row = {line.split()[1]: line for line in text.splitlines() if "-" in line.split()[1]}
    assert "×1.23" in row["decode-0"]
    assert "fixed" in row["decode-1"]
    assert "–" in row["prefill-0"]
    for part in ("lost", "busy", "3 of 1024 waiting", "Redis out of reach", "2 broken", "1 h 1 min"):
        assert part in text


def computing_lines(*workers: fleet_pb2.WorkerStatus) -> list[str]:
    facts = from_pb(FleetFacts, fleet_pb2.DescribeResponse(model_name="demo", block_size=16))
    text = shown(render(facts, snapshot_from_pb(fleet_pb2.WatchResponse(workers=workers))))
    return [line.strip("│ ") for line in text.splitlines() if "computes" in line]


def test_status_shows_how_workers_compute_by_name_where_some_differ() -> None:
    native = [
        fleet_pb2.WorkerStatus(worker_id=name, dtype="bfloat16", native_ops=True)
        for name in ("decode-0", "prefill-0")
    ]
    plain = fleet_pb2.WorkerStatus(worker_id="decode-1", dtype="bfloat16")
    assert computing_lines(*native) == ["computes  bfloat16, native ops"]
    assert computing_lines(*native, plain) == [
        "computes  bfloat16, native ops: decode-0, prefill-0",
        "computes  bfloat16, no native ops: decode-1",
    ]
    assert computing_lines(fleet_pb2.WorkerStatus(worker_id="timed-0")) == []


def test_status_shows_what_host_memory_and_disks_hold() -> None:
    facts = from_pb(FleetFacts, fleet_pb2.DescribeResponse(model_name="demo", block_size=16))
    workers = [
        fleet_pb2.WorkerStatus(worker_id="decode-0", disk_blocks=0),
        fleet_pb2.WorkerStatus(worker_id="decode-1", disk_blocks=1234, host_blocks=56),
        fleet_pb2.WorkerStatus(worker_id="decode-2"),
    ]
    text = shown(render(facts, snapshot_from_pb(fleet_pb2.WatchResponse(workers=workers))))
    assert "on disk   KV blocks: decode-0 0, decode-1 1234 " in text
    assert "in host   KV blocks: decode-1 56 " in text
    without = shown(render(facts, snapshot_from_pb(fleet_pb2.WatchResponse(workers=workers[2:]))))
    assert "on disk" not in without
    assert "in host" not in without


def test_status_shows_which_adapters_are_in_memory() -> None:
    facts = from_pb(FleetFacts, fleet_pb2.DescribeResponse(model_name="demo", block_size=16))
    workers = [
        fleet_pb2.WorkerStatus(worker_id="decode-0", loadable_adapters=3, loaded_adapters=["blue", "red"]),
        fleet_pb2.WorkerStatus(worker_id="decode-1", loadable_adapters=3),
        fleet_pb2.WorkerStatus(worker_id="decode-2"),
    ]
    text = shown(render(facts, snapshot_from_pb(fleet_pb2.WatchResponse(workers=workers))))
    assert "adapters  decode-0: 2 of 3 in memory (blue, red)" in text
    assert "adapters  decode-1: 0 of 3 in memory" in text
    assert "decode-2:" not in text


def test_a_starting_fleet_is_told_line_by_line() -> None:
    file = io.StringIO()
    with FleetReporter(Console(file=file, width=80)) as report:
        report(ProcessStarted("redis", 1))
        report(ProcessReady("redis", "127.0.0.1:7000", 0.04))
        report(ProcessDied("decode-0", -9, log_path=Path("x" * 90), tail="some line"))
        report(ProcessDied("decode-1", 1, log_path=Path("y.log"), tail="last [words]"))
        report(FleetStopping(3))
    text = file.getvalue()
    assert "✓ redis      127.0.0.1:7000" in text
    assert "killed by SIGKILL" in text
    assert f"out of memory\n  its log is {'x' * 90}\n" in text
    assert "| last [words]\n  its log is y.log\n" in text
    assert text.endswith("All processes have stopped.\n")


def test_one_worker_that_joins_is_not_called_workers() -> None:
    file = io.StringIO()
    with FleetReporter(Console(file=file, width=80)) as report:
        report(WorkersJoined(1))
        report(WorkersJoined(2))
    assert file.getvalue() == "✓ fleet      1 worker joined\n✓ fleet      2 workers joined\n"


def test_a_stalled_start_is_named_once_and_again_after_it_moved() -> None:
    file = io.StringIO()
    with FleetReporter(Console(file=file, width=80)) as report:
        report(ProcessStarted("decode-0", 1))
        for silent_s in (0.5, 11.0, 12.0, 0.5, 11.0):
            report(ProcessStarting("decode-0", "reading weights, 3 of 8 MB", silent_s))
    line = "! decode-0   stands still: reading weights, 3 of 8 MB, no word for 11 s\n"
    assert file.getvalue() == line + line


def test_a_terminal_shows_how_far_each_start_is() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    with FleetReporter(console) as report:
        report(ProcessStarted("decode-0", 1))
        report(ProcessStarted("prefill-0", 1))
        report(ProcessStarting("decode-0", "measuring steps, 3 of 27", 0.5))
    assert isinstance(console.file, io.StringIO)
    assert "starting decode-0 (measuring steps, 3 of 27), prefill-0" in console.file.getvalue()


def test_status_shows_workers_that_start() -> None:
    starting = [
        fleet_pb2.StartingWorker(worker_id="decode-0", phase="reading weights", done=42, total=100),
        fleet_pb2.StartingWorker(worker_id="prefill-0", phase="importing", silent_s=12.4),
    ]
    facts = from_pb(FleetFacts, fleet_pb2.DescribeResponse(model_name="demo", block_size=16))
    text = shown(render(facts, snapshot_from_pb(fleet_pb2.WatchResponse(starting=starting))))
    assert "decode-0 starting · reading weights 42%" in text
    assert "prefill-0 starting · importing · no word for 12 s" in text


async def test_the_live_status_leaves_its_last_view_and_no_other() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, color_system=None)
    facts = from_pb(FleetFacts, fleet_pb2.DescribeResponse(model_name="demo", block_size=16))

    async def views() -> AsyncIterator[RenderableType]:
        for uptime_s in (1, 2):
            yield render(facts, snapshot_from_pb(fleet_pb2.WatchResponse(uptime_s=uptime_s)))
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await show_live(views(), console)
    assert isinstance(console.file, io.StringIO)
    _, _, left = console.file.getvalue().rpartition("\x1b[?1049l")  # the end of the screen of its own
    assert left.count("╭") == 1
    assert "up 2 s" in left


def test_nothing_is_said_to_have_stopped_that_never_started() -> None:
    file = io.StringIO()
    with FleetReporter(Console(file=file, width=80)):
        pass
    assert file.getvalue() == ""


DELTAS: list[Delta] = [
    ReasoningDelta("Hot"),
    ReasoningDelta("?"),
    ContentDelta("I look."),
    ToolCallBegun(0, "f", "a"),
    ToolCallArguments(0, '{"a"'),
    ToolCallArguments(0, ": 1}"),
    ToolCallEnded(0),
    ToolCallBegun(1, "g", "b"),
    ToolCallArguments(1, "{}"),
    ToolCallEnded(1),
]


@pytest.mark.parametrize(("styled", "thought"), [(False, "(Hot?)"), (True, "\033[2mHot?\033[0m")])
def test_a_message_shows_thoughts_apart_and_calls_on_lines(styled: bool, thought: str) -> None:
    view = MessageView(styled=styled)
    text = "".join(view.more(delta) for delta in DELTAS) + view.end()
    assert text == f'{thought}\nI look.\n→ f({{"a": 1}})\n→ g({{}})'


@pytest.mark.parametrize(
    ("deltas", "text"),
    [
        ([ContentDelta("<tool_call> is a tag"), ContentDelta("!")], "<tool_call> is a tag!"),
        ([ToolCallBegun(0, "f", "a"), ToolCallArguments(0, '{"a')], '→ f({"a … cut off)'),
        (
            [
                ContentDelta("<tool_call>?"),
                ToolCallBegun(0, "f", "a"),
                ToolCallArguments(0, "{}"),
                ToolCallEnded(0),
            ],
            "<tool_call>?\n→ f({})",
        ),
    ],
)
def test_a_call_that_is_cut_off_is_said_to_be(deltas: list[Delta], text: str) -> None:
    view = MessageView(styled=False)
    assert "".join(view.more(delta) for delta in deltas) + view.end() == text


@given(st.lists(st.text()))
def test_content_alone_is_shown_as_it_is(texts: list[str]) -> None:
    view = MessageView(styled=True)
    assert "".join(view.more(ContentDelta(text)) for text in texts) + view.end() == "".join(texts)
