"""Puts routers, store and workers on one clock and plays a trace to them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

from router.core.model.events import StepReported, WorkerFacts, WorkerJoined, WorkerLoad
from router.core.model.state import CoreConfig
from router.core.simulated_runs import RunsReported, SimulatedRouterCore
from sim.clock import Clock
from sim.delays import delay_of
from sim.play.shell import SimShell
from sim.requests import Requests
from sim.result import SimResult
from sim.spec import SimSpec
from sim.step_times import DrawnRatios, RecordedRatios, StepTimes
from sim.store.memory_store import MemoryStore
from sim.workers.handoff import Handoffs
from sim.workers.worker import SimWorker, WorkerCommand


class Simulation:
    """Runs once."""

    def __init__(self, spec: SimSpec, arrived: Callable[[], None] = lambda: None) -> None:
        self._spec = spec
        self._arrived = arrived
        self._clock = Clock()
        self._store = MemoryStore(lambda: self._clock.now)
        self._requests = Requests(spec, self._over)
        turns = [request.turn for request in spec.trace]
        self._firsts = [place for place, turn in enumerate(turns) if turn is None or turn.before is None]
        """Places of requests that come by themselves."""
        self._next = {turn.before: place for place, turn in enumerate(turns) if turn is not None}
        """Places of calls by that of the call before."""
        self._receive_s = delay_of("receive", spec.delays, spec.overheads.receive_s)
        self._command_s = delay_of("command", spec.delays, spec.overheads.command_s)
        self._told_at = 0.0
        """When the last command so far reaches its worker."""
        self._has_shared = any(request.shared_blocks for request in spec.trace)
        self._handoffs = Handoffs(self._clock, spec.overheads.handoff_s, spec.send_token_s)
        self._workers = {worker.key: worker for worker in self._make_workers()}
        self._shells = [self._make_shell(number) for number in range(spec.num_routers)]

    def run(self) -> SimResult:
        """Play the trace until every request has ended, or its last arrival is `drain_s` ago."""
        clock, spec = self._clock, self._spec
        for shell in self._shells:
            for worker in self._workers.values():
                load = WorkerLoad(free_blocks=worker.facts.num_blocks)
                shell.submit(WorkerJoined(worker.facts, load, spec.profile.cost))
        clock.at(spec.trace[0].at_s, self._arrive_in_turn, 0)
        until = spec.trace[-1].at_s + spec.drain_s
        clock.run(until)
        return SimResult(
            requests=self._requests.results(),
            workers=tuple(worker.result() for worker in self._workers.values()),
            ended_s=clock.now,
            num_events=clock.num_calls,
            leftovers=self._leftovers(),
        )

    # Making

    def _make_workers(self) -> Iterator[SimWorker]:
        spec, profile = self._spec, self._spec.profile
        for place, (role, worker_id) in enumerate(spec.fleet.workers):
            facts = WorkerFacts(
                worker_id=worker_id,
                incarnation="0",
                role=role,
                address=f"{worker_id}:0",
                fingerprint=profile.weights_fingerprint,
                block_size=profile.block_size,
                num_blocks=spec.num_stages * profile.num_blocks,
                max_num_seqs=spec.num_stages * (spec.max_num_seqs or profile.max_num_seqs),
                token_budget=spec.token_budget or profile.token_budget,
                num_stages=spec.num_stages,
            )
            step_times = self._step_times(worker_id, place)
            yield SimWorker(
                facts, spec, step_times, self._clock, self._requests, self._handoffs, self._report
            )

    def _step_times(self, worker_id: str, place: int) -> StepTimes:
        recorded = self._spec.step_times.get(worker_id)
        if recorded is not None:
            return RecordedRatios(recorded, self._spec.profile.cost)
        return DrawnRatios(self._spec.profile.cost, self._spec.noise, (self._spec.seed, place))

    def _make_shell(self, number: int) -> SimShell:
        spec = self._spec
        config = CoreConfig(
            router_id=f"router-{number}",
            policy=spec.rules,
            placement=spec.placement,
            queue_capacity=spec.queue_capacity,
        )
        core = SimulatedRouterCore(config)
        return SimShell(number, core, self._store, self._clock, spec, self._requests, self._send)

    # Messages on their way

    def _arrive_in_turn(self, number: int) -> None:
        self._arrive(self._firsts[number])
        if number + 1 < len(self._firsts):
            at_s = self._spec.trace[self._firsts[number + 1]].at_s
            self._clock.at(at_s, self._arrive_in_turn, number + 1)

    def _over(self, place: int, retry_s: float | None) -> None:
        """Let a call of a program come back after it was refused, or the call after it come."""
        clock = self._clock
        if retry_s is not None:
            if self._requests.left_s(place, clock.now) > retry_s:
                clock.at(clock.now + retry_s, self._arrive, place)
        elif (following := self._next.get(place)) is not None:
            turn = self._spec.trace[following].turn
            assert turn is not None, "it follows another"
            clock.at(clock.now + turn.think_s, self._arrive, following)

    def _arrive(self, place: int) -> None:
        spec, clock = self._spec, self._clock
        self._arrived()
        submit = self._shells[place % spec.num_routers].submit
        hits = self._prefix_hits(place) if self._has_shared else {}
        arrived = self._requests.arrived(place, hits, clock.now)
        clock.at(clock.now + self._receive_s(clock.now), submit, arrived)

    def _prefix_hits(self, place: int) -> dict[str, int]:
        names = self._requests.name_blocks(place)
        held = {key: worker.pool.num_held(names) for key, worker in self._workers.items()}
        return {key: count for key, count in held.items() if count}

    def _send(self, router: int, command: WorkerCommand) -> None:
        """Send a router's command to its worker."""
        worker, now = self._workers[command.worker_key], self._clock.now
        # None overtakes another.
        self._told_at = max(self._told_at, now + self._command_s(now))
        self._clock.at(self._told_at, worker.told, router, command)

    def _report(self, router: int, report: StepReported | RunsReported) -> None:
        """Send a worker's report to a router."""
        self._clock.at(self._clock.now + self._spec.overheads.report_s, self._shells[router].submit, report)

    # The end

    def _leftovers(self) -> dict[str, int]:
        """Return what is held although nothing runs; empty once all requests have ended."""
        held = {
            "requests": sum(len(shell.core.state.live) for shell in self._shells),
            "groups": sum(len(shell.core.state.groups) for shell in self._shells),
            "queued": self._store.queue_status().waiting,
            "credits": sum(len(self._store.credits(key)) for key in self._workers),
            "leases": sum(len(self._store.leases(key)) for key in self._workers),
            "sequences": sum(len(worker.sequences) for worker in self._workers.values()),
            "blocks": sum(not worker.pool.is_empty for worker in self._workers.values()),
        }
        return {name: count for name, count in held.items() if count}


def run(spec: SimSpec, arrived: Callable[[], None] = lambda: None) -> SimResult:
    """Simulate; the same specification gives the same result. `arrived` is called for each request.

    Nothing here is kept by a cycle, so the collector would only walk what is there, over and over.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return Simulation(spec, arrived).run()
    finally:
        if was_enabled:
            gc.enable()
