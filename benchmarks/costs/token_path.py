"""Measure what each piece of code on a token's way takes, from the worker's report to its caller over HTTP.

One process calls the functions of worker, router, SDK and gateway one after the other, as tokens pass them,
and measures its own processor time. What lies between them is not measured here: gRPC, the event loops and
the calls of the system. Each generation is a completion without tools.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

from baton import Timeout
from baton.stream import GenerationStream
from baton.types.deltas import TextDelta
from baton.v1 import inference_pb2
from baton.wire.rows import parts_of
from baton.wire.transport import Row
from baton.worker.v1 import worker_pb2
from benchmarks.costs.core_decisions import Bench
from benchmarks.flags import count
from benchmarks.report import report
from engine.core.report import StepReport
from gateway.openai.shapes import sse
from gateway.serving.direct import Frames, relay
from router.api.many_call import Rows
from router.core.model.actions import Relay
from router.links.client_stream import ClientStream, Outbox
from router.links.convert_worker import report_from_pb
from router.links.metrics import RouterMetrics
from scheduling.columns import TokenColumns
from sim.reporting.progress import tracked
from sim.reporting.quantiles import quantile
from sim.reporting.section import Section, table
from sim.reporting.tables import cell
from worker.streams.convert import report_to_pb

STREAMS = (1, 16, 64, 256)
PIECES = (
    "worker: the step's report, its tokens as columns",
    "router: the report, read and converted",
    "router: decided: each token is the next of its choice",
    "router: each token becomes a row for its call, and counts",
    "router: the rows, written as one message",
    "gateway: the message, read and cut into rows",
    "gateway: each row is the next one, in the API's JSON",
)
TEXT = " word"
STEPS = 380
"""Fewer than the 400 tokens of each generation."""


class FreeLine:
    """A caller's connection that takes everything at once."""

    is_free = True

    def __init__(self) -> None:
        self.num_bytes = 0

    def write_now(self, event: bytes) -> None:
        self.num_bytes += len(event)


class Way:
    """The way of the tokens of so many streams, all of them in each step of one worker."""

    def __init__(self, streams: int, seed: int) -> None:
        self._bench = Bench(1, seed)
        self._handles = self._bench.decode(streams)
        self._indexes = itertools.count()
        self._outbox = Outbox()
        self._metrics = RouterMetrics()
        self._by_listener = {}
        for listener in range(1, streams + 1):
            stream = self._by_listener[listener] = ClientStream(outbox=self._outbox)
            stream.row_id = listener
        self.line = FreeLine()
        self._takes = {listener: self._caller() for listener in self._by_listener}

    def _caller(self) -> Callable[[Row], bool]:
        """Return what takes the rows of a generation whose caller reads by HTTP."""
        request = inference_pb2.GenerateRequest()
        stream = GenerationStream(request, None, Timeout(), None)  # type: ignore[arg-type]  # it calls no router
        frames = Frames(lambda delta: sse({"choices": [{"index": 0, "text": delta.text}]}))

        def say(deltas: list[TextDelta], _num_tokens: int) -> bytes:
            return b"".join(map(frames.of, deltas))

        relay(stream, self.line, say, has_deltas=False)  # type: ignore[arg-type]  # lists are sequences
        return stream._take  # noqa: SLF001 -- what a stream gives its transport

    def step_us(self) -> list[float]:
        """Return the processor time of each of PIECES for the next step."""
        marks = [time.process_time_ns()]
        rows = len(self._handles)
        index = next(self._indexes)
        tokens = TokenColumns(
            *(self._handles, [0] * rows, [index] * rows, [9] * rows, [0] * rows),
            text_lengths=[len(TEXT)] * rows,
            text_utf8=TEXT.encode() * rows,
        )
        content = report_to_pb(
            StepReport(tokens=tokens, step_seconds=0.01), draining=False
        ).SerializeToString()
        marks.append(time.process_time_ns())
        event = report_from_pb(self._bench.workers[0].key, worker_pb2.WorkResponse.FromString(content).step)
        marks.append(time.process_time_ns())
        self._bench.now += 0.01
        relayed = [action for action in self._bench.tell(event) if isinstance(action, Relay)]
        marks.append(time.process_time_ns())
        for action in relayed:
            self._push(action)
        marks.append(time.process_time_ns())
        message = Rows(self._outbox.take_rows()).message().SerializeToString()
        marks.append(time.process_time_ns())
        parts = list(parts_of(inference_pb2.GenerateManyResponse.FromString(message)))
        marks.append(time.process_time_ns())
        for generation_id, row in parts:
            assert isinstance(row, Row), "all that the message has are rows"
            if not self._takes[generation_id](row):
                raise AssertionError("a caller who waits takes its row")
        marks.append(time.process_time_ns())
        return [(end - begin) / 1000 for begin, end in itertools.pairwise(marks)]

    def _push(self, action: Relay) -> None:
        columns = zip(
            *(action.listeners, action.choices, action.indexes, action.token_ids, action.texts), strict=True
        )
        for listener, choice, index, token_id, text in columns:
            self._by_listener[listener].push_token(choice, index, token_id, text, None, free=False)
        self._metrics.relayed_step(action)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--steps", type=count, default=380, metavar="N", help="steps of each measurement (380)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure every number of streams for each seed."""
    costs: dict[str, dict[int, list[float]]] = {piece: {} for piece in PIECES}
    for seed, streams in tracked(
        [(seed, streams) for seed in args.seeds for streams in STREAMS], "token-path"
    ):
        way = Way(streams, seed)
        steps = list(zip(*(way.step_us() for _ in range(args.steps)), strict=True))
        for piece, times_us in zip(PIECES, steps, strict=True):
            costs[piece].setdefault(streams, []).append(quantile(times_us, 0.5) / streams)
    return report(args, [section(costs, args.steps)])


def section(costs: dict[str, dict[int, list[float]]], steps: int) -> Section:
    """Return the table: µs a token by piece and number of streams, and their sums."""
    rows = dict(costs)
    sums = [zip(*(costs[piece][streams] for piece in PIECES), strict=True) for streams in STREAMS]
    rows["all of it"] = {
        streams: [sum(of_seed) for of_seed in by_seed] for streams, by_seed in zip(STREAMS, sums, strict=True)
    }

    def column(streams: int) -> Callable[[str], str]:
        return lambda piece: cell(rows[piece][streams], spec=".1f")

    columns: dict[str, Callable[[str], str]] = {
        "µs a token": str,
        **{f"{streams} streams": column(streams) for streams in STREAMS},
    }
    method = f"Processor time of one process, medians of {steps} steps, by the number of streams."
    data = {piece: {str(streams): each for streams, each in by.items()} for piece, by in rows.items()}
    return Section("The way of a token", method, (), (table(list(rows), columns),), {"us_a_token": data})
