"""Prompts of recorded requests begin alike exactly as far as the trace says."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from baton import Slo, SloClass
from benchmarks.doors.metrics import RequestRecord
from benchmarks.doors.sending import Job
from benchmarks.fleets.load import open_loop, recorded_jobs
from sim.workloads.trace import TraceRequest

AT: Any = SimpleNamespace(vocab_size=50_000)
SIZE = 16


def alike(one: list[int], two: list[int]) -> int:
    """Return how many tokens two prompts begin alike with."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))
    return sum(1 for _ in pairs)


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=4), st.integers(1, 40)), max_size=6))
def test_equal_blocks_have_equal_tokens(drawn: list[tuple[list[int], int]]) -> None:
    requests = [
        TraceRequest(
            0.0, SIZE * len(blocks) + more - SIZE // 2 if blocks else more, 1,
            shared_blocks=tuple(blocks), shared_block_tokens=SIZE if blocks else 0,
        )
        for blocks, more in drawn
    ]  # fmt: skip
    work = list(recorded_jobs(AT, requests, 1))
    assert work == list(recorded_jobs(AT, requests, 1))
    for (request, job), (other, its) in itertools.combinations(zip(requests, work, strict=True), 2):
        assert len(job.token_ids) == request.prompt_tokens
        num_shared = alike(list(request.shared_blocks), list(other.shared_blocks))
        least = min(num_shared * SIZE, request.prompt_tokens, other.prompt_tokens)
        # Of 50 000 tokens, three in a row are equal by chance in one of 10 ** 14 cases.
        assert least <= alike(job.token_ids, its.token_ids) < least + 3 or least in (
            request.prompt_tokens,
            other.prompt_tokens,
        )


def test_each_seed_has_blocks_of_its_own() -> None:
    request = TraceRequest(0.0, SIZE, 1, shared_blocks=(7,), shared_block_tokens=SIZE)
    first, second = (next(recorded_jobs(AT, [request], seed)).token_ids for seed in (1, 2))
    assert first != second


def test_a_job_asks_for_what_the_request_asked_for() -> None:
    request = TraceRequest(0.0, 4, 9, "batch", ttft_ms=5, tpot_ms=6, itl_ms=7)
    (job,) = recorded_jobs(AT, [request], 1)
    assert job.output_tokens == 9
    assert job.slo == Slo(5, 6, 7, slo_class=SloClass.BATCH)


async def test_jobs_are_made_when_they_are_due() -> None:
    made: list[int] = []
    running: list[int] = []
    first_may_end = asyncio.Event()

    def work() -> Any:
        for number in range(3):
            made.append(number)
            yield Job([number], 1)

    async def send(job: Job) -> RequestRecord:
        running.append(job.token_ids[0])
        if job.token_ids[0] == 0:
            assert made == [0, 1]
            await first_may_end.wait()
        if len(running) == 3:
            first_may_end.set()
        return RequestRecord(0.0, 1, job.token_ids[0])

    records = await open_loop(send, work(), [0.0, 0.05, 0.05])
    assert [record.output_tokens for record in records] == [0, 1, 2]
    assert running == [0, 1, 2]
