"""Makes a failing scenario smaller, step by step, as long as the same promise breaks.

Since every draw has its own name, a scenario without one of its faults or requests plays the rest as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.dst.scenario import Request, Scenario

Fails = Callable[[Scenario], bool]
MAX_TRIALS = 400


def minimise(scenario: Scenario, fails: Fails) -> Scenario:
    """Return a scenario that fails too, and none of whose smaller neighbours does (or the trials ran out)."""
    num_trials = 0
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(scenario):
            num_trials += 1
            if num_trials > MAX_TRIALS:
                return scenario
            if fails(candidate):
                scenario, smaller = candidate, True
                break
    return scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    for place in range(len(scenario.faults)):
        yield replace(scenario, faults=_without(scenario.faults, place))
    for place in range(len(scenario.requests)):
        if len(scenario.requests) > 1:
            yield replace(scenario, requests=_without(scenario.requests, place))
    used = {name for fault in scenario.faults for name in (fault.target, fault.peer)}
    for name, least in (("routers", 1), ("decode", 1), ("prefill", 0), ("clients", 1)):
        count = getattr(scenario, name)
        if count > least and f"{name[0]}{count - 1}" not in used and not _calls(scenario, name, count):
            yield replace(scenario, **{name: count - 1})
    plain = Scenario(scenario.seed)
    for name in (
        "skew",
        "loses",
        "without_store",
        "delay_ms",
        "step_ms",
        "grace_s",
        "retention_s",
        "num_blocks",
        "queue_capacity",
        "max_num_seqs",
    ):
        if getattr(scenario, name) != getattr(plain, name):
            yield replace(scenario, **{name: getattr(plain, name)})
    for place, fault in enumerate(scenario.faults):
        for less in (
            replace(fault, lasts_s=fault.lasts_s / 2) if fault.lasts_s > 0.5 else fault,
            replace(fault, after_s=0.0),
            replace(fault, both=True),
        ):
            if less != fault:
                yield replace(scenario, faults=_with(scenario.faults, place, less))
    for name in {request.name: None for request in scenario.requests}:
        yield from _simpler(scenario, name)


def _simpler(scenario: Scenario, name: str) -> Iterator[Scenario]:
    """Yield the scenario with less in one request; all calls of one name ask for the same."""
    makes: tuple[Callable[[Request], Request], ...] = (
        lambda request: replace(request, n=1),
        lambda request: replace(request, max_tokens=max(1, request.max_tokens // 2)),
        lambda request: replace(request, prompt_tokens=max(1, request.prompt_tokens // 2)),
        lambda request: replace(request, leaves_after=None),
    )
    for make in makes:
        requests = tuple(make(each) if each.name == name else each for each in scenario.requests)
        if requests != scenario.requests:
            yield replace(scenario, requests=requests)


def _calls(scenario: Scenario, name: str, count: int) -> bool:
    return name == "clients" and any(request.client == count - 1 for request in scenario.requests)


def _without(entries: tuple, place: int) -> tuple:
    return entries[:place] + entries[place + 1 :]


def _with(entries: tuple, place: int, entry: object) -> tuple:
    return (*entries[:place], entry, *entries[place + 1 :])
