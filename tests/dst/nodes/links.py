"""A router's stream to one worker process: opened again when it breaks, given up when the worker is silent.

Heartbeats do not travel one by one. The link sees whether they would arrive, and only while they would not
does it count ticks, probe the worker by datagrams, and ask the router's own failure detector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from router.core.model.actions import WorkerCommand
from router.core.model.events import Event, WorkerHeld, WorkerJoined, WorkerLoaded, WorkerLost
from router.links.failure_detector import MIN_THRESHOLD_TICKS, UNTAKEN_FACTOR, FailureDetector
from router.links.ticker import TICK_S
from router.links.worker_link import BACKOFF_S
from tests.dst.nodes.worker import WorkerNode
from tests.dst.world.network import Connection, Network
from tests.dst.world.process import Process


class WorkerLink:
    """The stream from one router process to one worker process."""

    def __init__(
        self,
        router: Process,
        router_id: str,
        worker: WorkerNode,
        network: Network,
        submit: Callable[[Event], None],
    ) -> None:
        self.worker = worker
        self.joined = False
        self.connection: Connection | None = None
        self._router = router
        self._router_id = router_id
        self._network = network
        self._submit = submit
        self._failures = 0
        self._detector = FailureDetector()
        self._tick = 0
        self._untaken = 0
        self._is_watching = False
        self._is_held = False
        self.open()

    @property
    def key(self) -> str:
        return self.worker.facts.key

    def open(self) -> None:
        """Connect, now and again, for as long as the worker's process lives."""
        if not self.worker.process.is_alive:
            return
        name = ("work", self._router.name, self.worker.process.name)
        made = self.connection = self._network.connect(self._router, self.worker.process, name)
        if made is None:
            self._again()
            return
        made.listen(self._router, self._hear, self._broken)
        made.listen(self.worker.process, lambda _: self.worker.serve(made, self._router_id), lambda _: None)
        made.send(self._router, "hello", "Hello")
        self._detector.start_stream(self._tick)
        self.look()

    def send(self, command: WorkerCommand) -> None:
        """Send a command. Those on a broken link are lost, and `WorkerLost` says so."""
        if self.joined and self.connection is not None:
            self.connection.send(self._router, command, type(command).__name__)

    def _hear(self, message: Any) -> None:
        self._detector.record_message(self._tick)
        self._is_held = False
        match message:
            case ("welcome", facts, load, cost):
                self.joined, self._failures = True, 0
                self._submit(WorkerJoined(facts, load, cost))
            case ("report", event):
                self._submit(event)
            case ("heartbeat", load):
                self._submit(WorkerLoaded(self.key, load))

    def _broken(self, reason: str) -> None:
        was_joined, self.joined = self.joined, False
        self.connection = None
        if was_joined:
            self._submit(WorkerLost(self.key, reason))
        self._again()

    def _again(self) -> None:
        pause_s = BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
        self._failures += 1
        self._router.loop.call_later(pause_s, self.open)

    # Silence

    def look(self) -> None:
        """Look whether messages would come; called whenever a link or a process has changed."""
        if not self._is_watching and self.connection is not None and (self._is_silent or self._is_deaf):
            self._is_watching = True
            self._router.loop.call_later(TICK_S, self._on_tick)

    @property
    def _is_silent(self) -> bool:
        worker = self.worker.process
        return not worker.runs or not self._network.flows(worker.name, self._router.name)

    @property
    def _is_deaf(self) -> bool:
        """Return whether the worker hears nothing, although its own messages arrive."""
        return not self._network.flows(self._router.name, self.worker.process.name)

    def _on_tick(self) -> None:
        self._is_watching = False
        if self.connection is None:
            return
        self._tick += 1
        detector = self._detector
        self._untaken = self._untaken + 1 if self._is_deaf and self.connection.num_travelling else 0
        if not self._is_silent:
            detector.record_message(self._tick)
        if detector.is_lost(self._tick) or self._untaken > UNTAKEN_FACTOR * detector.threshold:
            silent_s = detector.silent_ticks(self._tick) * TICK_S
            detector.record_message(self._tick)
            self._give_up(f"silent for {silent_s:.1f} s")
            return
        if detector.should_probe(self._tick):
            name = ("probe", self._router.name, self.worker.process.name)
            self._network.datagram(self._router, self.worker.process, name, self._probed)
        self.look()

    def _probed(self) -> None:
        """The worker has the probe, and responds."""
        name = ("ack", self.worker.process.name, self._router.name)
        self._network.datagram(self.worker.process, self._router, name, self._on_ack)

    def _on_ack(self) -> None:
        """A worker that answers is excused, unless what it has written does not arrive."""
        flows = self._network.flows(self.worker.process.name, self._router.name)
        if self.connection is None or not flows or not self._detector.should_probe(self._tick):
            return
        self._detector.excuse(self._tick)
        if (
            self.joined
            and not self._is_held
            and self._detector.silent_ticks(self._tick) >= MIN_THRESHOLD_TICKS
        ):
            self._is_held = True
            self._submit(WorkerHeld(self.key))

    def _give_up(self, reason: str) -> None:
        connection = self.connection
        if connection is not None:
            connection.close(self._router, "the router gave it up")
            self._broken(reason)
