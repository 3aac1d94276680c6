"""A run as data: the fleet, what its callers do, and the faults. Drawn from a seed, or read from JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tests.dst.world.dice import Dice

ROUTER, PREFILL, DECODE, STORE, CLIENT = "router", "prefill", "decode", "redis", "client"
PHASES = ("queued", "settling", "prefill", "handoff", "decode", "ended")
"""The phases of a request in which a fault may strike. `handoff` begins with the first token."""
KINDS = ("kill", "stop", "cut", "half-open", "slow", "island", "drain", "jump")
OPERATOR = "operator"
"""The peer of a drain that is asked of the routers, not of the worker itself."""
TALKS_TO = {
    ROUTER: (PREFILL, DECODE, STORE),
    PREFILL: (ROUTER, DECODE),
    DECODE: (ROUTER, PREFILL, DECODE),
    STORE: (ROUTER,),
}
"""The roles that a process has links to, besides clients."""
PLACEMENTS = ("disaggregated", "conditional", "aggregated")
POLICIES = (
    "slack", "slack", "slack", "slack", "slack", "slack", "chunked", "chunked", "orca", "orca",
    "slos_serve", "jitserve", "qoserve", "polyserve",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """One call, and what its caller does meanwhile."""

    name: str
    client: int
    at: float
    prompt_tokens: int
    max_tokens: int
    n: int = 1
    leaves_after: int | None = None
    """Its caller hangs up after so many tokens."""
    cancels: bool = True
    """A caller that hangs up ends the request; otherwise the fleet goes on for the grace."""
    ttft_ms: int | None = None
    program_ms: int | None = None
    """The time that is left for the program of its client; None if it is of no program."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It strikes at a time, or `after_s` seconds after a request has reached a phase."""

    kind: str
    target: str
    """The process that it strikes; the sender, if it strikes a link."""
    peer: str = ""
    """The other end, if it strikes a link; the role of all of them, if the target is cut off as an island."""
    lasts_s: float = 1.0
    at: float | None = None
    upon: tuple[str, str] | None = None
    """A request's name and a phase."""
    after_s: float = 0.0
    both: bool = True
    """It strikes both directions of a link."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    routers: int = 2
    prefill: int = 1
    decode: int = 2
    clients: int = 1
    placement: str = "disaggregated"
    policy: str = "slack"
    grace_s: float = 10.0
    retention_s: float = 60.0
    num_blocks: int = 32
    max_num_seqs: int = 8
    delay_ms: tuple[float, float] = (0.2, 2.0)
    step_ms: tuple[float, float] = (10.0, 40.0)
    loses: float = 0.0
    """The share of datagrams that is lost, and the share of those that comes twice."""
    skew: bool = False
    """Clocks differ in what they show and how fast they run."""
    queue_capacity: int = 1024
    without_store: bool = False
    """Routers serve newcomers by their own view while Redis is away."""
    requests: tuple[Request, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def workers(self) -> list[str]:
        return [f"p{i}" for i in range(self.prefill)] + [f"d{i}" for i in range(self.decode)]

    @property
    def router_names(self) -> list[str]:
        return [f"r{i}" for i in range(self.routers)]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def role_of(name: str) -> str:
    return (
        {"r": ROUTER, "p": PREFILL, "d": DECODE, "c": CLIENT}.get(name[0], STORE) if name != STORE else STORE
    )


def struck_by(fault: Fault) -> str:
    """Return the role of the process that a fault strikes, or the roles at both ends of a link."""
    if fault.kind == "island":
        return f"{role_of(fault.target)} from {fault.peer}"
    roles = sorted(role_of(name) for name in (fault.target, fault.peer) if name not in ("", OPERATOR))
    return "–".join(roles)


def from_json(text: str) -> Scenario:
    """Read a scenario. Raises `ValueError` that names a field which it does not have."""
    values = json.loads(text)
    values.pop("broken", None)
    values["requests"] = tuple(_made(Request, each) for each in values.get("requests", ()))
    values["faults"] = tuple(
        _made(Fault, each | {"upon": tuple(each["upon"]) if each.get("upon") else None})
        for each in values.get("faults", ())
    )
    for name in ("delay_ms", "step_ms"):
        if name in values:
            values[name] = tuple(values[name])
    made: Scenario = _made(Scenario, values)
    return made


def _made(kind: Any, values: dict[str, Any]) -> Any:
    known = {each.name for each in fields(kind)}
    unknown = sorted(values.keys() - known)
    if unknown:
        raise ValueError(f"{kind.__name__} has {', '.join(unknown)}; accepted: {', '.join(sorted(known))}")
    return kind(**values)


# Drawing


def draw(seed: int) -> Scenario:
    """Return the run of a seed. Each seed has its own few kinds of faults, fleet and constants."""
    dice = Dice(seed)
    prefill = dice.one_of((0, 1, 1, 2), "prefill")
    shape = Scenario(
        seed=seed,
        routers=dice.one_of((1, 2, 2, 3), "routers"),
        prefill=prefill,
        decode=dice.one_of((1, 2, 2, 3), "decode"),
        clients=dice.one_of((1, 2), "clients"),
        placement=dice.one_of(PLACEMENTS if prefill else PLACEMENTS[1:], "placement"),
        policy=dice.one_of(POLICIES, "policy"),
        grace_s=dice.one_of((10.0, 10.0, 3.0, 0.0), "grace"),
        retention_s=dice.one_of((60.0, 1.0), "retention"),
        num_blocks=dice.one_of((64, 24, 16), "blocks"),
        max_num_seqs=dice.one_of((8, 3), "seats"),
        delay_ms=dice.one_of(((0.2, 2.0), (0.2, 20.0), (1.0, 100.0)), "delay"),
        step_ms=dice.one_of(((10.0, 40.0), (10.0, 40.0), (100.0, 600.0)), "steps"),
        loses=dice.one_of((0.0, 0.3), "loses"),
        skew=dice.happens(0.5, "skew"),
        queue_capacity=dice.one_of((1024, 1024, 1024, 2), "queue"),
        without_store=dice.happens(0.3, "without store"),
    )
    shape = replace(shape, requests=_draw_requests(shape, dice))
    return replace(shape, faults=_draw_faults(shape, dice))


def _draw_requests(shape: Scenario, dice: Dice) -> tuple[Request, ...]:
    found: list[Request] = []
    for number in range(dice.whole(1, 6, "requests")):
        if found and dice.happens(0.15, number, "again"):
            # The id of an earlier one comes again: at the same time, or when that one is long over.
            same = dice.one_of(found, number, "which")
            later = dice.one_of((0.0, 0.5, 4.0), number, "later")
            found.append(
                replace(same, at=same.at + later, client=dice.whole(0, shape.clients - 1, number, "client"))
            )
            continue
        n = dice.one_of((1, 1, 1, 2, 3), number, "n")
        found.append(
            Request(
                name=f"q{number}",
                client=dice.whole(0, shape.clients - 1, number, "client"),
                at=round(dice.between(0.5, 3.0, number, "at"), 3),
                prompt_tokens=dice.whole(1, 24, number, "prompt"),
                max_tokens=dice.whole(1, 24, number, "length"),
                n=n,
                leaves_after=dice.whole(1, 6, number, "left")
                if dice.happens(0.1, number, "leaves")
                else None,
                cancels=dice.happens(0.5, number, "cancels"),
                ttft_ms=dice.one_of((None, None, None, 400, 3000), number, "ttft"),
                program_ms=dice.one_of((None, None, None, 0, 1000, 30_000), number, "program"),
            )
        )
    return tuple(found)


def _draw_faults(shape: Scenario, dice: Dice) -> tuple[Fault, ...]:
    kinds = [kind for kind in KINDS if dice.happens(0.5, "swarm", kind)] or list(KINDS)
    found: list[Fault] = []
    for number in range(dice.whole(0, 4, "faults")):
        fault = _draw_fault(shape, dice, kinds, number)
        if found and dice.happens(0.3, "fault", number, "same"):
            # What was struck before is struck again: two faults on one process or link.
            fault = replace(fault, kind=found[-1].kind, target=found[-1].target, peer=found[-1].peer)
        found.append(fault)
    return tuple(found)


def _draw_fault(shape: Scenario, dice: Dice, kinds: list[str], number: int) -> Fault:
    def one(options: list[str], name: str) -> str:
        return dice.one_of(options, "fault", number, name)

    kind = one(kinds, "kind")
    processes = [*shape.router_names, *shape.workers, STORE]
    upon = None
    if shape.requests and dice.happens(0.7, "fault", number, "upon"):
        request = dice.one_of(shape.requests, "fault", number, "request")
        upon = request.name, dice.one_of(PHASES, "fault", number, "phase")
    lasts_s = dice.one_of((0.3, 1.5, 5.0, 9.5, 40.0), "fault", number, "lasts")
    common = {
        "at": None if upon else round(dice.between(0.3, 6.0, "fault", number, "at"), 3),
        "upon": upon,
        "after_s": dice.one_of(
            (
                0.0,
                0.0,
                round(dice.share("fault", number, "soon") / 10, 4),
                round(3 * dice.share("fault", number, "later"), 3),
            ),
            "fault",
            number,
            "after",
        ),
        "lasts_s": lasts_s,
    }
    if kind in ("kill", "stop", "jump"):
        return Fault(kind, one(processes, "target"), **common)  # type: ignore[arg-type]  # the four above
    if kind == "island":
        target = one(processes, "target")
        return Fault(kind, target, one(list(TALKS_TO[role_of(target)]), "peer"), **common)  # type: ignore[arg-type]
    if kind == "drain":
        target = one([*shape.router_names, *shape.workers], "target")
        by_operator = role_of(target) != ROUTER and dice.happens(0.3, "fault", number, "by operator")
        return Fault(kind, target, OPERATOR if by_operator else "", **common)  # type: ignore[arg-type]
    routers, workers = shape.router_names, shape.workers
    clients = [f"c{i}" for i in range(shape.clients)]
    pairs = [(r, w) for r in routers for w in workers] + [(r, STORE) for r in routers]
    pairs += [(c, r) for c in clients for r in routers]
    pairs += [(d, s) for d in workers if d[0] == "d" for s in workers if s != d]
    target, peer = dice.one_of(pairs, "fault", number, "pair")
    if dice.happens(0.5, "fault", number, "turned"):
        target, peer = peer, target
    both = dice.happens(0.5, "fault", number, "both")
    return Fault(kind, target, peer, both=both, **common)  # type: ignore[arg-type]
