"""The processes of one run: how they are made, find each other, end and are replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from router.core.model.events import DrainAsked
from router.core.model.state import CoreConfig
from scheduling.cost_model import CostModel
from scheduling.placement import Placement
from scheduling.policies import by_name
from tests.dst.nodes.client import ClientNode
from tests.dst.nodes.router import RouterNode
from tests.dst.nodes.store import StoreClient, StoreServer
from tests.dst.nodes.worker import WorkerNode, WorkerSize
from tests.dst.scenario import DECODE, ROUTER, STORE, Scenario, role_of
from tests.dst.world.dice import Dice
from tests.dst.world.network import Network
from tests.dst.world.process import Process, State
from tests.dst.world.rpc import Servers
from tests.dst.world.scheduler import Scheduler

FOUND_S = (0.05, 0.4)
"""How long a router needs to find a worker that has announced itself."""
DRAIN_S = 20.0
COST = CostModel((0.01, 0.0, 0.001, 0.0, 0.0, 0.0), 0.0)
Seen = Callable[[RouterNode, Any, Any], None]


class Fleet:
    """All processes by name. One that has died is replaced when its fault ends."""

    def __init__(self, scenario: Scenario, seen: Seen) -> None:
        self.scenario = scenario
        self.scheduler = Scheduler()
        self.dice = Dice(scenario.seed)
        low, high = scenario.delay_ms
        self.network = Network(self.scheduler, self.dice, (low / 1000, high / 1000))
        self.network.loses = scenario.loses
        self.servers: Servers = {}
        self.routers: dict[str, RouterNode] = {}
        self.workers: dict[str, WorkerNode] = {}
        self.clients: dict[str, ClientNode] = {}
        self.store: StoreServer | None = None
        self.processes: list[Process] = []
        """Every process there has been."""
        self.router_died_at = float("-inf")
        self.longest_without_decode_s = 0.0
        self._no_decode_since: float | None = 0.0
        self._seen = seen
        self._num_made: dict[str, int] = {}
        self._begin(STORE)
        for name in [*scenario.workers, *scenario.router_names, *(f"c{i}" for i in range(scenario.clients))]:
            self._begin(name)

    # Making processes

    def _process(self, name: str) -> Process:
        number = self._num_made[name] = self._num_made.get(name, 0) + 1
        skew = self.scenario.skew
        process = Process(
            name,
            self.scheduler,
            Dice(f"{self.scenario.seed}/{name}/{number}"),
            offset_s=1000.0 + (self.dice.between(0.0, 500.0, "offset", name, number) if skew else 0.0),
            rate=self.dice.between(0.9995, 1.0005, "rate", name) if skew else 1.0,
        )
        self.processes.append(process)
        return process

    def _begin(self, name: str) -> None:
        process = self._process(name)
        match role_of(name):
            case "redis":
                self.store = StoreServer(process, self._num_made[name])
            case "router":
                self._begin_router(process)
            case "client":
                scenario = self.scenario
                self.clients[name] = ClientNode(
                    process, self.network, self.servers, scenario.router_names, scenario.grace_s
                )
            case _:
                self._begin_worker(process)

    def _begin_router(self, process: Process) -> None:
        scenario, name = self.scenario, process.name
        config = CoreConfig(
            name,
            policy=by_name(scenario.policy),
            placement=Placement(scenario.placement),
            queue_capacity=scenario.queue_capacity,
            retention_s=scenario.retention_s,
            serves_without_store=scenario.without_store,
            router_incarnation=f"{name}.{self._num_made[name]}",
        )
        store = StoreClient(
            process, self.network, lambda: self.store if self.store and self.store.process.is_alive else None
        )
        router = self.routers[name] = RouterNode(
            process, self.network, self.servers, config, store, self._seen
        )
        for worker in self.workers.values():
            self._tell(router, worker)

    def _begin_worker(self, process: Process) -> None:
        scenario, name = self.scenario, process.name
        low, high = scenario.step_ms
        size = WorkerSize(
            num_blocks=scenario.num_blocks,
            max_num_seqs=scenario.max_num_seqs,
            step_s=(low / 1000, high / 1000),
        )
        worker = self.workers[name] = WorkerNode(
            process,
            self.network,
            self.servers,
            role_of(name),
            str(self._num_made[name]),
            size,
            by_name(scenario.policy),
            COST,
        )
        worker.on_left = lambda: self._left(worker)
        for router in self.routers.values():
            self._tell(router, worker)

    def _tell(self, router: RouterNode, worker: WorkerNode) -> None:
        wait_s = self.dice.between(*FOUND_S, "found", router.process.name, worker.facts.key)
        self.scheduler.after(wait_s, router.process.do, router.discover, worker)

    def look(self) -> None:
        """Let links see what has changed about processes and the network."""
        for router in self.routers.values():
            if router.process.is_alive:
                for link in router.links.values():
                    router.process.do(link.look)

    # Faults

    def find(self, name: str) -> Process | None:
        if name == STORE:
            return self.store.process if self.store is not None else None
        found = self.routers.get(name) or self.workers.get(name) or self.clients.get(name)
        return None if found is None else found.process

    def kill(self, name: str) -> Callable[[], None] | None:
        """Kill a process, and return what starts another one in its place."""
        process = self.find(name)
        if process is None or not process.is_alive:
            return None
        self._end(process)
        return lambda: self._begin(name)

    def _end(self, process: Process) -> None:
        if role_of(process.name) == ROUTER:
            self.router_died_at = self.scheduler.now
        found = self.servers.get(process.name)
        if found is not None and found[0] is process:
            del self.servers[process.name]
        process.kill()
        self.look()

    def stop(self, name: str) -> Callable[[], None] | None:
        process = self.find(name)
        if process is None or not process.runs:
            return None
        process.stop()
        self.look()

        def end() -> None:
            process.go_on()
            self.look()

        return end

    def drain(self, name: str, *, by_operator: bool) -> Callable[[], None] | None:
        """Tell a process to leave; its successor starts when the fault ends, if it has gone by then.

        An operator tells all routers that a worker is to leave, and they tell it.
        """
        process = self.find(name)
        if process is None or not process.runs:
            return None
        if role_of(name) == ROUTER:
            router = self.routers[name]
            router.leave(DRAIN_S)
            self.scheduler.after(DRAIN_S + 0.5, self._end_if_alive, process)
        else:
            if by_operator:
                for router in self.living_routers():
                    router.process.do(router.submit, DrainAsked(name))
            else:
                self.workers[name].leave()
            self.scheduler.after(DRAIN_S, self._end_if_alive, process)

        def replace() -> None:
            if not process.is_alive:
                if self.find(name) is process:
                    self._begin(name)
            else:
                self.scheduler.after(0.5, replace)

        return replace

    def note_decoding(self) -> None:
        """Keep the longest time without a decode worker that any router could reach."""
        now = self.scheduler.now
        if any(self._is_reachable(worker) for worker in self.living_workers()):
            self._no_decode_since = None
            return
        if self._no_decode_since is None:
            self._no_decode_since = now
        self.longest_without_decode_s = max(self.longest_without_decode_s, now - self._no_decode_since)

    def _is_reachable(self, worker: WorkerNode) -> bool:
        name = worker.process.name
        if role_of(name) != DECODE or not worker.process.runs or worker.is_leaving:
            return False
        return any(
            router.process.runs
            and self.network.flows(router.process.name, name)
            and self.network.flows(name, router.process.name)
            for router in self.living_routers()
        )

    def _end_if_alive(self, process: Process) -> None:
        if process.is_alive:
            self._end(process)

    def _left(self, worker: WorkerNode) -> None:
        self._end_if_alive(worker.process)

    def jump(self, name: str, seconds: float) -> Callable[[], None] | None:
        process = self.find(name)
        if process is None or not process.is_alive:
            return None
        if name != STORE:  # for Redis's scripts a jump is no time (runtime/state/lua/clock.lua)
            process.jump(seconds)
        return lambda: None

    def dispose(self) -> None:
        """End all that is left when the run is over."""
        for process in self.processes:
            process.state = State.DEAD
        for process in self.processes:
            process.loop.dispose()

    # Views

    def living_routers(self) -> Iterator[RouterNode]:
        return (router for router in self.routers.values() if router.process.is_alive)

    def living_workers(self) -> Iterator[WorkerNode]:
        return (worker for worker in self.workers.values() if worker.process.is_alive)

    @property
    def roles(self) -> dict[str, str]:
        return {process.name: role_of(process.name) for process in self.processes}
