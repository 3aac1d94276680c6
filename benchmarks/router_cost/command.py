"""Say what a router adds to a request: to its first token, in calls to Redis, and in processor time by part.

    python -m benchmarks router-cost --seeds 1,2,3
    python -m benchmarks router-cost first-tokens --against ../other-checkout

First tokens: an idle fleet of one worker, which computes nothing and keeps the times of a profile, is asked
for one token in turns: the worker itself, over the protocol that routers speak, and its router, with the
prompt as tokens and as text. Calls to Redis: those that its MONITOR shows for more requests. Processor time:
py-spy profiles the router, and over HTTP the gateway too, under loads of `python -m benchmarks peers`. A
server that only sends the same messages as the router has these loads as well. py-spy is installed into
.venv-peers. To look into another process, it needs to be root, or `kernel.yama.ptrace_scope` to be 0. With
`--against`, the router of another checkout serves the same worker, and is asked in the same turns.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from baton import Sampling, Slo, Stop
from baton.errors import Unavailable
from baton.fleet import Fleet, FleetSpec
from baton.wire.convert import request_to_pb
from baton.wire.transport import GENERATE, GrpcTransport
from benchmarks.doors.arms import Arm
from benchmarks.flags import count
from benchmarks.peers.baton_arm import PROFILE, baton, by_grpc
from benchmarks.peers.environments import HERE, NotInstalled
from benchmarks.peers.loads import RATES, STREAMS, WORDS, Load, play
from benchmarks.report import report
from benchmarks.router_cost.alone import Ask, worker_alone
from benchmarks.router_cost.empty_service import empty_server
from benchmarks.router_cost.profiler import Profile, profiled
from benchmarks.router_cost.redis_calls import monitored, own_redis
from runtime.state.connection import SCRIPTS, source
from sim.reporting.progress import tracked
from sim.reporting.quantiles import quantile
from sim.reporting.section import Section, at_most, markdown
from sim.reporting.tables import cell

CALLS = 100
COUNTED = 20
"""Requests of each kind while the calls to Redis are counted."""
READY_S = 30.0
PROMPT_TOKENS, PROMPT_WORDS = 50, 35
TOKEN_IDS = (100, 2000)
"""The range from which tokens are drawn, within the vocabulary of the demo model."""
ONE_TOKEN = Sampling(temperature=0), Stop(max_tokens=1, ignore_eos=True), Slo()
TTFT_GOAL_MS = 3.0
NUM_LEAVES = 8
_SCRIPT = re.compile(rb'"EVALSHA" "(\w+)"')


PARTS = FIRST, FLOOR, PROFILING = "first-tokens", "floor", "profile"
HTTP = "HTTP"
PROFILED = (
    (STREAMS[1], "Generate"),
    (STREAMS[3], "Generate"),
    (STREAMS[3], "GenerateMany"),
    (STREAMS[1], HTTP),
    (STREAMS[3], HTTP),
    (RATES[0], "Generate"),
    (RATES[2], "Generate"),
    (RATES[0], HTTP),
)
"""Loads, and the call over which the router is asked; over HTTP the gateway is profiled as well."""
Profiles = dict[Load, dict[str, Profile]]
"""By load, and by call and process."""
Floors = dict[Load, list[float]]
"""Processor time of the empty server for a token or a request, in µs or ms, for each seed."""


@dataclass(slots=True)
class Firsts:
    """First tokens of one seed: ms by who was asked and how, in pairs; and the scripts that Redis ran."""

    alone_ms: list[float] = field(default_factory=list)
    tokens_ms: list[float] = field(default_factory=list)
    text_ms: list[float] = field(default_factory=list)
    other_tokens_ms: list[float] = field(default_factory=list)
    other_text_ms: list[float] = field(default_factory=list)
    """Through the router of another checkout, if there is one."""
    sent_ms: list[float] = field(default_factory=list)
    """The part of `text_ms` until the router had sent the request to the worker."""
    computed_ms: list[float] = field(default_factory=list)
    """The part from there to the worker's report."""
    scripts: dict[str, int] = field(default_factory=dict)

    def later_ms(self, through: Sequence[float]) -> float:
        """Return by how much first tokens came later through the router, as the median of pairs."""
        return _later_ms(through, self.alone_ms)


def _later_ms(these: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the differences of pairs."""
    return quantile([this - other for this, other in zip(these, others, strict=True)], 0.5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"what to measure: {', '.join(PARTS)} (all of them)"
    )
    text = f"first tokens of each kind, a seed ({CALLS})"
    against = "another checkout, whose router is asked for first tokens in the same turns"
    parser.add_argument("--against", type=Path, metavar="PATH", help=against)
    parser.add_argument("--calls", type=count, default=CALLS, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    for part in args.parts:
        if part not in PARTS:
            raise ValueError(f"PART is {part!r}; accepted: {', '.join(PARTS)}")
    parts = args.parts or PARTS
    return report(
        args, asyncio.run(_measure(args.model.resolve(), parts, args.calls, args.seeds, args.against))
    )


async def _measure(
    model: Path, parts: Sequence[str], num_calls: int, seeds: Sequence[int], against: Path | None
) -> list[Section]:
    firsts = await _all_first_tokens(model, num_calls, seeds, against) if FIRST in parts else []
    floors = await _floors(seeds) if FLOOR in parts else {}
    note = f"py-spy and the client share the machine with the fleet. Seeds: {', '.join(map(str, seeds))}."
    profiles: Profiles = {}
    try:
        if PROFILING in parts:
            profiles = await _profiles(model, seeds)
    except (NotInstalled, TimeoutError) as error:
        note = f"Profiles are missing: {error}"
        print(note, file=sys.stderr)
    return list(sections(firsts, profiles, floors, note))


async def _all_first_tokens(
    model: Path, num_calls: int, seeds: Sequence[int], against: Path | None
) -> list[Firsts]:
    with own_redis() as redis_url:
        spec = FleetSpec(model=model, timed=PROFILE, prefill=0, placement="aggregated", redis_url=redis_url)
        async with (
            Fleet(spec) as fleet,
            _transport(GrpcTransport, fleet.router_addresses[0]) as transport,
            worker_alone(redis_url) as alone,
            AsyncExitStack() as stack,
        ):
            other = None
            if against is not None:
                address = await stack.enter_async_context(_router_of(against, redis_url, model))
                other = await stack.enter_async_context(_transport(GrpcTransport, address))
                await _until_it_serves(other)
            return [
                await first_tokens(alone, transport, other, redis_url, num_calls, seed)
                for seed in tracked(seeds, "first tokens")
            ]


@asynccontextmanager
async def _router_of(checkout: Path, redis_url: str, model: Path) -> AsyncIterator[str]:
    """Run the router of a checkout with this environment's packages; yields its address."""
    command = sys.executable, "-m", "router", "--listen", "127.0.0.1:0", "--log-level", "error"
    process = await asyncio.create_subprocess_exec(
        *(*command, "--redis", redis_url, "--model", str(model), "--timed", PROFILE),
        *("--placement", "aggregated"),
        cwd=checkout,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        ready = re.match(r"READY router \S+ address=(\S+)", (await process.stdout.readline()).decode())
        if ready is None:
            raise ValueError(f"{checkout} has no router that starts")
        yield ready[1]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_it_serves(transport: GrpcTransport) -> None:
    """Wait until a router that has just started has found the worker."""
    async with asyncio.timeout(READY_S):
        while True:
            try:
                await by_grpc(transport, list(range(*TOKEN_IDS)[:PROMPT_TOKENS]), 1)
            except Unavailable:
                await asyncio.sleep(0.1)
            else:
                return


async def _floors(seeds: Sequence[int]) -> Floors:
    floors: Floors = {load: [] for load, call in PROFILED if call == "Generate"}
    async with empty_server() as server, _transport(GrpcTransport, server.address) as transport:
        arm = Arm("empty", {"server": server.pid}, partial(by_grpc, transport))
        await play(arm, STREAMS[0], 0)
        for seed in tracked(seeds, "an empty server"):
            for load, costs in floors.items():
                costs.append(load.cost(await play(arm, load, seed))["server"])
    return floors


async def _profiles(model: Path, seeds: Sequence[int]) -> Profiles:
    profiles: Profiles = {}
    async with baton(model) as every_arm:
        arms = dict(zip(("Generate", "GenerateMany", HTTP), every_arm, strict=True))
        for arm in arms.values():
            await play(arm, STREAMS[1], 0)
        for seed in tracked(seeds, "profiles"):
            for load, call in PROFILED:
                for process, profile in (await _profile(arms[call], load, seed)).items():
                    by_call = profiles.setdefault(load, {})
                    by_call.setdefault(f"{call}, {process}", Profile()).add(profile)
    return profiles


async def _profile(arm: Arm, load: Load, seed: int) -> dict[str, Profile]:
    """Return a profile of each process between client and workers while a load is played."""
    async with AsyncExitStack() as stack:
        profiles = {
            process: await stack.enter_async_context(profiled(pid, HERE)) for process, pid in arm.pids.items()
        }
        run = await play(arm, load, seed)
    for profile in profiles.values():
        profile.num_units = len(run.ttft_ms) * (load.num_tokens if load.is_streams else 1)
    return profiles


@asynccontextmanager
async def _transport(kind: type[GrpcTransport], address: str) -> AsyncIterator[GrpcTransport]:
    transport = kind(address)
    try:
        yield transport
    finally:
        await transport.close()


async def first_tokens(
    alone: Ask,
    transport: GrpcTransport,
    other: GrpcTransport | None,
    redis_url: str,
    num_calls: int,
    seed: int,
) -> Firsts:
    """Ask for first tokens in turns, with a new prompt each time. Some more requests count Redis' scripts.

    MONITOR reports each command that a script calls, which costs Redis and this process as much as the
    scripts themselves. So nothing is timed meanwhile.
    """
    firsts, rng = Firsts(), random.Random(seed)
    for _ in range(num_calls):
        await _ask_each(alone, transport, other, firsts, rng)
    names = {hashlib.sha1(source(name).encode()).hexdigest(): name for name in SCRIPTS}  # noqa: S324 -- how Redis names scripts

    def take(line: bytes) -> None:
        called = _SCRIPT.search(line)
        name = None if called is None else names.get(called[1].decode())
        if name is not None:  # the other checkout has scripts of its own
            firsts.scripts[name] = firsts.scripts.get(name, 0) + 1

    async with monitored(redis_url, take):
        for _ in range(COUNTED):
            await _ask_each(alone, transport, None, Firsts(), rng)
    return firsts


async def _ask_each(
    alone: Ask, transport: GrpcTransport, other: GrpcTransport | None, firsts: Firsts, rng: random.Random
) -> None:
    """Ask everybody once, in an order drawn each time: who comes first finds the processor asleep."""

    async def ask_alone() -> None:
        firsts.alone_ms.append(1000 * await alone(_tokens(rng)))

    async def ask_tokens(router: GrpcTransport, ms: list[float]) -> None:
        ms.append(1000 * await by_grpc(router, _tokens(rng), 1))

    async def ask_text(router: GrpcTransport, ms: list[float], into: Firsts) -> None:
        ms.append(await _text_ms(router, rng, into))

    turns: list[Callable[[], Awaitable[None]]] = [
        ask_alone,
        partial(ask_tokens, transport, firsts.tokens_ms),
        partial(ask_text, transport, firsts.text_ms, firsts),
    ]
    if other is not None:
        turns += [
            partial(ask_tokens, other, firsts.other_tokens_ms),
            partial(ask_text, other, firsts.other_text_ms, Firsts()),
        ]
    rng.shuffle(turns)
    for turn in turns:
        await turn()


async def _text_ms(transport: GrpcTransport, rng: random.Random, firsts: Firsts) -> float:
    """Return when the first token of a text came; the parts of that time are added to `firsts`."""
    request = request_to_pb(" ".join(rng.choices(WORDS, k=PROMPT_WORDS)), *ONE_TOKEN)
    start_s, ms = time.perf_counter(), 0.0
    async for response in transport.stream(GENERATE, request):
        if response.event.HasField("tokens"):
            ms = 1000 * (time.perf_counter() - start_s)
        elif response.event.HasField("finished"):
            firsts.sent_ms.append(response.event.finished.split.queue_ms)
            firsts.computed_ms.append(response.event.finished.split.prefill_ms)
    return ms


def _tokens(rng: random.Random) -> list[int]:
    return [rng.randrange(*TOKEN_IDS) for _ in range(PROMPT_TOKENS)]


def sections(firsts: Sequence[Firsts], profiles: Profiles, floors: Floors, note: str) -> Iterator[Section]:
    """Yield first tokens, calls to Redis, and where the processor time goes, for streams and for requests."""
    if firsts:
        yield _first_tokens_section(firsts)
        yield _redis_section(firsts)
    for title, is_streams in (("Processor time of streams", True), ("Processor time of requests", False)):
        unit, spec = ("µs a token", ".1f") if is_streams else ("ms a request", ".2f")
        columns = [
            (load, call, profile)
            for load, by_call in profiles.items()
            for call, profile in by_call.items()
            if load.is_streams is is_streams
        ]
        floor = {load: costs for load, costs in floors.items() if load.is_streams is is_streams}
        tables = []
        if columns:
            tables += [_parts_table(unit, spec, 1e6 if is_streams else 1e3, columns), _leaves_table(columns)]
        if floor:
            rows = [(load.name, cell(costs, spec=spec)) for load, costs in floor.items()]
            tables.append(markdown((f"a server that only sends the same messages, {unit}", "CPU"), rows))
        data = {f"{load.name}, {call}": profile.as_dict() for load, call, profile in columns}
        floor_data = {load.name: costs for load, costs in floor.items()}
        if tables:
            yield Section(title, note, (), tuple(tables), {"profiles": data, "floor": floor_data})


def _first_tokens_section(firsts: Sequence[Firsts]) -> Section:
    kinds = {
        "the worker alone": [each.alone_ms for each in firsts],
        "through the router, prompt as tokens": [each.tokens_ms for each in firsts],
        "through the router, prompt as text": [each.text_ms for each in firsts],
        "of this, until it is sent to the worker": [each.sent_ms for each in firsts],
        "of this, from there to the worker's report": [each.computed_ms for each in firsts],
    }
    rows = [
        (kind, *(cell([quantile(ms, share) for ms in runs], spec=".2f") for share in (0.5, 0.9)))
        for kind, runs in kinds.items()
    ]
    goals = tuple(
        at_most(f"{kind}: later than the worker alone, P50 of pairs, ms", later, TTFT_GOAL_MS)
        for kind, later in (
            ("tokens", [each.later_ms(each.tokens_ms) for each in firsts]),
            ("text", [each.later_ms(each.text_ms) for each in firsts]),
        )
    )
    method = (
        f"An idle fleet of one worker; prompts of {PROMPT_TOKENS} tokens or {PROMPT_WORDS} words, all new."
    )
    tables = [markdown(("first token", "P50, ms", "P90, ms"), rows)]
    if firsts[0].other_text_ms:
        tables.append(_against_table(firsts))
    return Section("First tokens", method, goals, tuple(tables), {"firsts": list(map(asdict, firsts))})


def _against_table(firsts: Sequence[Firsts]) -> str:
    """Return by how much first tokens come later than through the other checkout's router."""
    rows = [
        (
            kind,
            cell([quantile(other, 0.5) for _, other in runs], spec=".2f"),
            cell([_later_ms(this, other) for this, other in runs], spec="+.2f"),
        )
        for kind, runs in (
            ("prompt as tokens", [(each.tokens_ms, each.other_tokens_ms) for each in firsts]),
            ("prompt as text", [(each.text_ms, each.other_text_ms) for each in firsts]),
        )
    ]
    header = ("first token", "through the other checkout's router, P50, ms", "through this one: later, ms")
    return markdown(header, rows)


def _redis_section(firsts: Sequence[Firsts]) -> Section:
    total: Counter[str] = Counter()
    for each in firsts:
        total.update(each.scripts)
    requests = 2 * COUNTED * len(firsts)  # as tokens and as text
    rows = [(name, f"{calls / requests:.2f}") for name, calls in total.items()]
    method = (
        "All scripts that Redis ran for some more requests, in the order of their first call, with those of "
        "the clock."
    )
    return Section("Calls to Redis", method, (), (markdown(("script", "calls a request"), rows),))


Columns = Sequence[tuple[Load, str, Profile]]


def _parts_table(unit: str, spec: str, scale: float, columns: Columns) -> str:
    """Return what each part takes of each load, and what the process takes in all."""
    shares = [profile.parts() for _, _, profile in columns]
    whole = [scale * profile.cpu_s / profile.num_units for _, _, profile in columns]
    parts = sorted(
        {part for profile_parts in shares for part in profile_parts},
        key=lambda part: -sum(profile_parts.get(part, 0.0) for profile_parts in shares),
    )
    rows = [
        (
            part,
            *(
                f"{cost * profile_parts.get(part, 0.0):{spec}} ({profile_parts.get(part, 0.0):.0%})"
                for cost, profile_parts in zip(whole, shares, strict=True)
            ),
        )
        for part in parts
    ]
    rows.append(("the process", *(f"{cost:{spec}}" for cost in whole)))
    rows.append(("samples", *(f"{profile.num_samples}" for _, _, profile in columns)))
    return markdown((unit, *(f"{load.name}, {call}" for load, call, _ in columns)), rows)


def _leaves_table(columns: Columns) -> str:
    rows = [
        (f"{load.name}, {call}", f"{share:.1%}", f"`{frame}`")
        for load, call, profile in columns
        for frame, share in profile.leaves(NUM_LEAVES).items()
    ]
    return markdown(("load", "samples", "function"), rows)
