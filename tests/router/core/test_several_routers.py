"""One request at several routers and a worker, whose clocks differ: the last caller receives it.

Routers are cores, and the worker is the hub of a real one with its fences. Links keep their order, and
messages take as long as Hypothesis likes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine.core.commands import Decode
from engine.core.report import Load, StepReport
from kvtransfer.fence import FenceGuard
from router.core.core import RouterCore
from router.core.model.actions import Action, Reject, SendCancel, SendDecode, TellRetrying
from router.core.model.events import ClientGone, StepReported
from router.core.model.session import Phase
from router.core.model.state import CoreConfig
from router.errors import Superseded
from router.links.convert_worker import command_to_pb, report_from_pb
from scheduling.placement import Placement
from scheduling.request import SequenceSpec
from tests.router.core_driver import ARRIVAL, call
from tests.router.core_model import Heard
from tests.router.core_world import World
from tests.worker.streams.test_hub import RecordingSides
from worker.metrics import WorkerMetrics
from worker.streams.convert import command_from_pb, report_to_pb
from worker.streams.hub import Hub
from worker.streams.routers import Sequences

NUM_ROUTERS = 3
GRACE_S = 5.0
MAX_ROUNDS = 100
"""More than the calls below need until all is still."""

ROOMY = Load(free_blocks=64)


class Clock(asyncio.SelectorEventLoop):
    """The loop of the worker's hub, which takes its time from here."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Router(World):
    """A core whose commands wait on the link to the worker, and the worker's reports on the link back."""

    def __init__(self, name: str, clock_s: float, rate: float, incarnation: str = "1") -> None:
        super().__init__()
        config = CoreConfig(name, placement=Placement.AGGREGATED, router_incarnation=incarnation)
        self.core = RouterCore(config)
        self.now, self.rate = clock_s, rate
        self.commands: deque[SendDecode | SendCancel] = deque()
        self.reports: deque[StepReported] = deque()
        self.rejected: dict[int, Superseded] = {}
        self.sessions: dict[int, int] = {}
        """The session that each call was told it is served in."""

    def attend(self) -> None:
        while self.calls:
            self.answer(self.calls.pop(0))

    def _carry_out(self, action: Action) -> None:
        match action:
            case Reject(listener, Superseded() as error):
                self.rejected[listener] = error
            case TellRetrying(listener, _, session):
                self.sessions[listener] = session
            case _:
                super()._carry_out(action)

    def _start(self, worker_key: str, spec: SequenceSpec, *, prefills: bool) -> None:
        self.commands.append(SendDecode(worker_key, spec))

    def _stop(self, worker_key: str, handles: tuple[int, ...]) -> None:
        self.commands.append(SendCancel(worker_key, handles))


@dataclass
class Client:
    """A client as the SDK is one: it counts its sessions, and takes a request back before its first event."""

    router: int
    listener: int
    session: int = 0
    is_lost: bool = False


class Fleet:
    """Nothing moves in it by itself."""

    def __init__(self, rates: tuple[float, ...]) -> None:
        """The clock of the worker, and then those of the routers, run at these rates."""
        self.grace_s = GRACE_S
        """The grace of all calls."""
        self.clock = Clock()
        self.clock_rate, *router_rates = rates
        self.sides = RecordingSides()
        self.hub = self.clock.run_until_complete(self._started())
        self.routers = [
            Router(f"router-{number}", 1000.0 * number, rate) for number, rate in enumerate(router_rates)
        ]
        for router in self.routers:
            router.join("d", "decode")
            (self.worker_key,) = router.workers
        self.links = [self.hub.connect(f"router-{number}") for number in range(len(router_rates))]
        self.begun: dict[tuple[int, int], int] = {}
        """The engine's handle of what each router's handle names."""
        self.clients: list[Client] = []
        self.num_calls = 0
        self.num_restarts = 0

    def restart(self, number: int) -> None:
        """A router dies, so the worker gives up what it ran for it; another process begins under its id."""
        old = self.routers[number]
        self.num_restarts += 1
        new = Router(f"router-{number}", old.now, old.rate, f"{self.num_restarts + 1}")
        new.join("d", "decode")
        self.hub.disconnect(self.links[number])
        self.routers[number], self.links[number] = new, self.hub.connect(f"router-{number}")
        self.free()

    async def _started(self) -> Hub:
        sequences = Sequences(ROOMY)
        return Hub("1", sequences, self.sides, lambda command: None, FenceGuard(), WorkerMetrics())

    # Clients

    def call(self, number: int) -> Client:
        client = Client(number, self._arrive(number, 0))
        self.clients.append(client)
        return client

    def resume(self, client: Client, number: int, *, is_noticed: bool) -> None:
        """A client's call breaks, which its router may not notice, and it resumes."""
        router = self.routers[client.router]
        client.session = max(client.session, router.sessions.get(client.listener, 0)) + 1
        if is_noticed:
            self.hang_up(client)
        client.router, client.listener = number, self._arrive(number, client.session)

    def hang_up(self, client: Client) -> None:
        router = self.routers[client.router]
        router.tell(ClientGone(client.listener))
        router.attend()

    def _arrive(self, number: int, session: int) -> int:
        self.num_calls += 1
        router = self.routers[number]
        router.heard[self.num_calls] = Heard(ARRIVAL.request.stop.max_tokens)
        came = call(
            ARRIVAL,
            listener=self.num_calls,
            session=session,
            received_at=router.now,
            resume_grace_s=self.grace_s,
        )
        router.tell(came)
        router.attend()
        return self.num_calls

    def _react(self, client: Client) -> None:
        """Do what the SDK does when a call has been refused."""
        router = self.routers[client.router]
        error = router.rejected.get(client.listener)
        if error is None or client.is_lost:
            return
        has_begun = client.session or router.heard[client.listener].accepted
        if has_begun:
            client.is_lost = True
        else:
            client.session = error.current + 1
            client.listener = self._arrive(client.router, client.session)

    def served_in(self, client: Client) -> int | None:
        """Return the session in which the worker computes what the client waits for; None if it does not."""
        session = self.routers[client.router].core.state.by_listener.get(client.listener)
        if client.is_lost or session is None:
            return None
        (group,) = session.groups
        handle = self.begun.get((client.router, group.handle), 0)
        runs = group.phase is Phase.RUNNING and handle > 0 and handle not in self.sides.cancelled
        return group.sent_session if runs else None

    def is_over(self, client: Client) -> bool:
        """Return whether the client has hung up, or knows that its call has ended."""
        return client.is_lost or self.routers[client.router].heard[client.listener].over > 0

    def free(self) -> None:
        """The engine frees the blocks of all that has ended or was cancelled: of what no router lets run."""
        running = {
            (number, group.handle)
            for number, router in enumerate(self.routers)
            for session in router.core.state.live.values()
            for group in session.groups
            if group.phase is Phase.RUNNING
        }
        over = [self.begun.pop(name) for name in self.begun.keys() - running]
        self.hub.on_report(StepReport(ROOMY, freed=over))

    # Messages

    def deliver_command(self, number: int) -> None:
        router, link = self.routers[number], self.links[number]
        if not router.commands:
            return
        command = command_from_pb(command_to_pb(router.commands.popleft()))
        num_begun = len(self.sides.begun)
        self.hub.apply(link, command)
        if len(self.sides.begun) > num_begun:
            assert isinstance(command, Decode)
            self.begun[number, command.spec.handle] = self.sides.begun[-1]
        for told, link in zip(self.routers, self.links, strict=True):
            while (report := self.clock.run_until_complete(link.take(0.0))) is not None:
                message = report_to_pb(report, draining=False).step
                told.reports.append(report_from_pb(self.worker_key, message))

    def deliver_report(self, number: int) -> None:
        router = self.routers[number]
        if router.reports:
            router.tell(router.reports.popleft())
            router.attend()

    def deliver_commands(self) -> None:
        """Let refused clients act, and deliver all commands; what the worker reports of them waits."""
        for client in self.clients:
            self._react(client)
        for number, router in enumerate(self.routers):
            while router.commands:
                self.deliver_command(number)

    def settle(self) -> None:
        """Deliver all messages, and all that come of them."""
        num_rounds = 0
        while self._move():
            num_rounds += 1
            assert num_rounds < MAX_ROUNDS, "routers take the request from each other without end"

    def _move(self) -> bool:
        """Deliver a message of each link; return False if there was none, and no client called again."""
        num_calls = self.num_calls
        has_messages = any(router.commands or router.reports for router in self.routers)
        for number in range(len(self.routers)):
            self.deliver_command(number)
            self.deliver_report(number)
        for client in self.clients:
            self._react(client)
        return has_messages or self.num_calls > num_calls

    def wait(self, seconds: float) -> None:
        self.clock.now += self.clock_rate * seconds
        for router in self.routers:
            router.pass_time(router.rate * seconds)
            router.attend()


@contextmanager
def fleet_of(rates: tuple[float, ...]) -> Iterator[Fleet]:
    fleet = Fleet(rates)
    try:
        yield fleet
    finally:
        fleet.clock.close()


ROUTERS = st.integers(0, NUM_ROUTERS - 1)
RATES = st.tuples(*[st.sampled_from([1.0, 1.0 - 4e-4, 1.0 + 4e-4])] * (NUM_ROUTERS + 1))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), ROUTERS),
        st.tuples(st.just("resume"), ROUTERS, st.integers(0, 9), st.booleans()),
        st.tuples(st.just("hang up"), st.integers(0, 9)),
        st.tuples(st.just("command"), ROUTERS),
        st.tuples(st.just("report"), ROUTERS),
        st.tuples(st.just("wait"), st.sampled_from([0.001, 0.1, 2.0, 30.0])),
    ),
    max_size=20,
)


def play(fleet: Fleet, event: tuple[Any, ...]) -> None:
    living = [client for client in fleet.clients if not client.is_lost]
    match event:
        case "call", number:
            fleet.call(number)
        case "resume", number, which, is_noticed if living:
            fleet.resume(living[which % len(living)], number, is_noticed=is_noticed)
        case "hang up", which if living:
            client = living[which % len(living)]
            fleet.hang_up(client)
            client.is_lost = True
        case "command", number:
            fleet.deliver_command(number)
        case "report", number:
            fleet.deliver_report(number)
        case "wait", seconds:
            fleet.wait(seconds)


@given(RATES, st.sampled_from([0.0, GRACE_S]), EVENTS, st.lists(ROUTERS, min_size=1, max_size=3))
def test_the_last_caller_receives_the_request(
    rates: tuple[float, ...], grace_s: float, events: list[tuple[Any, ...]], last: list[int]
) -> None:
    """No two routers take it from each other without end, and nobody else waits for what does not come."""
    with fleet_of(rates) as fleet:
        fleet.grace_s = grace_s
        for event in events:
            play(fleet, event)
        for number in last:
            fleet.deliver_commands()
            fleet.wait(1.0)
            client = fleet.call(number)
            fleet.settle()
            session = fleet.served_in(client)
            if client.session and session is None:
                continue  # its router knew of a resumption, refused it, and did not know the last session
            assert session is not None
            waiting = [client for client in fleet.clients if not fleet.is_over(client)]
            assert {fleet.served_in(client) for client in waiting} == {session}


@pytest.mark.parametrize("grace_s", [0.0, GRACE_S])
def test_a_request_that_was_taken_back_outlives_its_router(grace_s: float) -> None:
    """Its client resumes in the session after the one that the router took, also without a grace."""
    with fleet_of((1.0,) * (NUM_ROUTERS + 1)) as fleet:
        fleet.grace_s = grace_s
        early = fleet.call(0)
        fleet.settle()
        fleet.resume(early, 1, is_noticed=True)
        fleet.settle()
        fleet.wait(1.0)
        late = fleet.call(2)
        fleet.settle()
        assert (late.session, fleet.served_in(late)) == (0, 2), "taken back from the early caller"
        fleet.resume(late, 0, is_noticed=False)
        fleet.restart(2)
        fleet.settle()
        assert fleet.served_in(late) == late.session == 3
