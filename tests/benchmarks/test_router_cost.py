"""A profile says where a router's time goes, and first tokens are compared pair by pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.loads import RATES, STREAMS
from benchmarks.router_cost.command import COUNTED, Firsts, sections
from benchmarks.router_cost.profiler import (
    ELSE,
    GRPC,
    NATIVE,
    PARTS,
    Profile,
    parsed,
    part_of,
)
from tools.house.source_tree import ROOT

SUBMIT = "_submit (/router/links/shell.py)"
LINK = "(/router/links/worker_link.py)"
HITS = "_hits (/router/intake/preprocessor.py)"
RAW = """\
run (/r/router/__main__.py);_read (/r/router/links/worker_link.py);recv (libc.so.6) 2
run (/r/router/__main__.py);_read (/r/router/links/worker_link.py);_submit (/r/router/links/shell.py);\
on (/r/router/core/core.py) 5
run (/r/router/__main__.py);_write (/r/router/api/service.py);to_pb (/r/runtime/rpc/convert.py) 3
"""


def profile() -> Profile:
    """Return a profile of 100 tokens or requests."""
    return Profile(parsed(RAW, Path("/r")), cpu_s=2.0, native_cpu_s=0.5, num_units=100)


@pytest.mark.parametrize(
    ("frames", "part"),
    [
        ([SUBMIT, "on (/router/core/core.py)", "plan (/scheduling/step.py)"], "decisions"),
        (
            [SUBMIT, "do (/router/links/store_calls.py)", "pack (/runtime/state/multiplexer.py)"],
            "calls to Redis",
        ),
        (["arrival (/router/intake/preprocessor.py)", "run (/runtime/state/store.py)"], "calls to Redis"),
        ([f"_read {LINK}", "from_pb (/runtime/rpc/convert.py)"], "reports of workers"),
        ([f"_write {LINK}", "to_pb (/runtime/rpc/convert.py)"], "commands to workers"),
        (["_write (/router/api/service.py)", "sendmsg (libc.so.6)"], "events to clients"),
        ([HITS, "f (/scheduling/memory/block_hash.py)"], "requests of clients"),
        (["f (/v/grpc/_cython/cygrpc.so)", "sendmsg (libc.so.6)"], GRPC),
        (["run_forever (/v/uvloop/loop.so)", "epoll_wait (libc.so.6)"], ELSE),
        (["_read (/baton/wire/many.py)", "take (/gateway/serving/direct.py)"], "tokens to HTTP callers"),
        (["_read (/baton/wire/many.py)", "_rows_in (/baton/wire/rows.py)"], "messages of routers"),
        (["_generate (/baton/wire/many.py)", "f (/baton/wire/convert.py)"], "requests to routers"),
        (["chat (/gateway/openai/chat.py)", "f (/v/pydantic/main.py)"], "HTTP requests"),
    ],
)
def test_a_sample_belongs_to_its_innermost_part(frames: list[str], part: str) -> None:
    assert part_of(frames) == part


def test_every_part_is_of_files_that_there_are() -> None:
    for texts in PARTS.values():
        for text in texts:
            function, _, path = text.rpartition("(/")
            if text.startswith("/"):
                continue
            found = list(ROOT.glob(f"{path}*"))
            assert found, text
            if function:
                sources = [
                    part for each in found for part in (each.rglob("*.py") if each.is_dir() else [each])
                ]
                assert any(f"def {function.strip()}(" in each.read_text(encoding="utf-8") for each in sources)


def test_shares_of_parts_add_up_with_the_threads_that_are_not_sampled() -> None:
    found = profile().parts()
    assert list(found) == ["decisions", NATIVE, "events to clients", "reports of workers"]
    assert found["decisions"] == pytest.approx(0.75 * 0.5)
    assert sum(found.values()) == pytest.approx(1)
    assert profile().leaves(1) == {"on (/router/core/core.py)": pytest.approx(0.5)}


def test_costs_are_by_token_or_by_request_and_first_tokens_by_pair() -> None:
    firsts = Firsts(
        alone_ms=[10.0, 20.0, 30.0],
        tokens_ms=[12.0, 23.0, 31.0],
        text_ms=[14.0, 24.0, 34.0],
        other_tokens_ms=[11.5, 22.0, 31.0],
        other_text_ms=[15.0, 24.0, 33.5],
        sent_ms=[2.0],
        computed_ms=[9.0],
    )
    firsts.scripts.update({"enqueue": 2 * COUNTED, "renew": COUNTED})
    profiles = {STREAMS[1]: {"Generate": profile()}, RATES[0]: {"Generate": profile()}}
    floors = {STREAMS[1]: [20.0, 30.0, 25.0], RATES[0]: [1.5]}
    first, redis, streams, requests = sections([firsts], profiles, floors, "the note")
    assert [goal.median for goal in first.goals] == [pytest.approx(2), pytest.approx(4)]
    assert [goal.is_met for goal in first.goals] == [True, False]
    assert "| prompt as tokens | 22.00 | +0.50 |" in first.markdown()
    assert "| prompt as text | 24.00 | +0.00 |" in first.markdown()
    assert "| enqueue | 1.00 |" in redis.markdown()
    assert "| renew | 0.50 |" in redis.markdown()
    assert "| decisions | 7500.0 (38%) |" in streams.markdown()
    assert "| the process | 20.00 |" in requests.markdown()
    assert "| 16 × 400 tokens | 25.0 (20.0 – 30.0) |" in streams.markdown()
    assert "| 50 a second, 35 words | 1.50 |" in requests.markdown()
