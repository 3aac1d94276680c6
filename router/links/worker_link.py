"""The `Work` stream to one worker: sends commands, receives reports, and is opened again when it breaks.

A silent worker is probed beside the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc.aio
import structlog

from baton.worker.v1 import worker_pb2, worker_pb2_grpc
from baton.worker.v1.worker_pb2 import Probe, ProbeAck
from router.core.model.actions import WorkerCommand
from router.core.model.events import Event, WorkerHeld, WorkerLost
from router.links.convert_worker import (
    ROLES,
    command_to_pb,
    heartbeat_from_pb,
    joined_from_pb,
    report_from_pb,
)
from router.links.failure_detector import (
    MIN_THRESHOLD_TICKS,
    PROBE_TICKS,
    UNTAKEN_FACTOR,
    FailureDetector,
)
from router.links.ticker import TICK_S, Ticker
from runtime.rpc.calls import cancel
from runtime.rpc.convert import from_pb
from runtime.rpc.numbering import Incoming, Outgoing, OutOfOrder
from runtime.rpc.probe import seal, unseal
from runtime.security.tls import CertificateRole, FleetTls, open_channel
from runtime.state.records import WorkerRecord

WorkCall = grpc.aio.StreamStreamCall[worker_pb2.WorkRequest, worker_pb2.WorkResponse]

MAX_OUTBOUND = 4096
"""Commands that may wait for the worker: a worker this far behind does not read."""
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class Computing:
    """How a worker computes, as it reports to operators. No decision depends on it."""

    dtype: str = ""
    """Such as bfloat16; empty if the worker computes nothing, or has not reported it."""
    native_ops: bool = False


class LinkBroken(Exception):
    """The stream has become unusable."""


class WorkerLink:
    """Keeps a stream to one announced worker."""

    def __init__(
        self,
        record: WorkerRecord,
        router_id: str,
        submit: Callable[[Event], None],
        on_crash: Callable[[], None],
        ticker: Ticker,
        tls: FleetTls | None = None,
    ) -> None:
        self.record = record
        self._tls = tls
        self._router_id = router_id
        self._submit = submit
        self._on_crash = on_crash
        self._ticker = ticker
        self._detector = FailureDetector()
        self._log = structlog.get_logger().bind(worker=record.worker_id, address=record.address)
        self._outbound: asyncio.Queue[tuple[WorkerCommand, str]] = asyncio.Queue(MAX_OUTBOUND)
        """Commands, each with the span of the attempt that it starts."""
        self._outgoing = Outgoing()
        self._incoming = Incoming()
        self._prober = Prober(record.address, self._on_ack)
        self._is_held = False
        """The core knows that the worker's event loop is held up."""
        self._call: WorkCall | None = None
        self.joined = False
        """The worker takes commands."""
        self.num_joins = 0
        """Streams on which it has taken commands so far."""
        self.computing = Computing()
        self._closed = False

    def send(self, command: WorkerCommand, traceparent: str = "") -> None:
        """Send a command, in order. Commands on a broken link are lost; the core gets `WorkerLost` then."""
        if not self.joined:
            return
        try:
            self._outbound.put_nowait((command, traceparent))
        except asyncio.QueueFull:
            self._log.warning("link_overflow", waiting=MAX_OUTBOUND)
            assert self._call is not None, "a joined link has a call"
            cancel(self._call)

    def close(self) -> None:
        """End `run` after its current stream. Call this before cancelling `run`.

        Before Python 3.13, a task group that is just ending over an error, such as a worker that leaves,
        drops the cancellation.
        """
        self._closed = True

    async def run(self) -> None:
        """Connect, serve, and connect again, until cancelled after `close`."""
        failures = 0
        while not self._closed:
            try:
                reason = await self._serve_once()
            except Exception as error:  # noqa: BLE001 - a loop's top
                # If the link just ended, its worker would stay joined and its requests would hang.
                self._on_crash()
                self._log.exception("link_crashed")
                reason = f"{type(error).__name__}: {error}"
            was_joined, self.joined = self.joined, False
            if was_joined:
                failures = 0
                self._submit(WorkerLost(self.record.key, reason))
            self._log.warning("link_broken" if was_joined else "link_refused", reason=reason)
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
            failures += 1

    async def _serve_once(self) -> str:
        reason = "ended"
        self._outbound = asyncio.Queue(MAX_OUTBOUND)
        self._outgoing, self._incoming = Outgoing(), Incoming()
        self._prober, self._is_held = Prober(self.record.address, self._on_ack), False
        async with open_channel(
            self._tls, self.record.address, CertificateRole.WORKER, CHANNEL_OPTIONS
        ) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            call = self._call = stub.Work()
            self._detector.start_stream(self._ticker.num_ticks)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._read(call))
                    tasks.create_task(self._write(call))
                    tasks.create_task(self._watch())
                    tasks.create_task(self._prober.run())
            except* LinkBroken as broken:
                reason = str(broken.exceptions[0])
            except* grpc.aio.AioRpcError as errors:
                reason = "; ".join(map(_sentence, errors.exceptions))
            finally:
                cancel(call)
        return reason

    async def _write(self, call: WorkCall) -> None:
        request = worker_pb2.WorkRequest(hello=worker_pb2.Hello(router_id=self._router_id))
        while True:
            request.number = self._outgoing.next(self._ticker.num_ticks)
            try:
                await call.write(request)
            except asyncio.InvalidStateError:  # the call is over, and `_read` gets the reason
                return
            request = command_to_pb(*await self._outbound.get())

    async def _read(self, call: WorkCall) -> None:
        self._welcome(await self._next(call))
        while True:
            response = await self._next(call)
            kind = response.WhichOneof("report")
            if kind == "step":
                self._submit(report_from_pb(self.record.key, response.step))
            elif kind == "heartbeat":
                self._submit(heartbeat_from_pb(self.record.key, response.heartbeat))

    async def _watch(self) -> None:
        """Probe the worker while it is silent, until it counts as lost."""
        detector = self._detector
        while not detector.is_lost(tick := await self._ticker.next()):
            if detector.should_probe(tick) or self._outgoing.waited(tick) >= PROBE_TICKS:
                self._prober.send()
        silent_ticks = detector.silent_ticks(tick)
        detector.record_message(tick)  # for the next stream to the same process
        raise LinkBroken(f"silent for {silent_ticks * TICK_S:.1f} s")

    def _on_ack(self, ack: ProbeAck) -> None:
        """Excuse the silence of a worker that responds, unless the stream itself is broken."""
        tick = self._ticker.num_ticks
        # The counts in responses on the stream are old if many of those wait to be read here.
        self._outgoing.acknowledge(ack.taken, tick)
        if ack.written > self._incoming.taken or not self._detector.should_probe(tick):
            return
        self._detector.excuse(tick)
        self._outgoing.restart_timeout(tick)
        is_long = self._detector.silent_ticks(tick) >= MIN_THRESHOLD_TICKS
        if self.joined and not self._is_held and is_long:
            self._is_held = True
            self._log.warning("worker_held", loop_late_s=round(ack.unwritten_seconds, 1))
            self._submit(WorkerHeld(self.record.key))

    async def _next(self, call: WorkCall) -> worker_pb2.WorkResponse:
        response = await call.read()
        if response is grpc.aio.EOF:
            raise LinkBroken(
                f"the worker ended the stream: {(await call.code()).name} {await call.details()}"
            )
        assert isinstance(response, worker_pb2.WorkResponse), "a stream yields messages until its end"
        self._detector.record_message(self._ticker.num_ticks)
        self._is_held = False
        self._check_numbers(response)
        return response

    def _check_numbers(self, response: worker_pb2.WorkResponse) -> None:
        try:
            self._incoming.take(response.number)
        except OutOfOrder as error:
            raise LinkBroken(f"a report is missing: {error}") from error
        timeout = UNTAKEN_FACTOR * self._detector.threshold
        tick = self._ticker.num_ticks
        self._outgoing.acknowledge(response.taken, tick)
        lost = self._outgoing.lost(tick, timeout)
        if lost is not None:
            raise LinkBroken(f"command {lost} was not taken within {timeout * TICK_S:.1f} s")

    def _welcome(self, response: worker_pb2.WorkResponse) -> None:
        welcome = response.welcome
        if response.WhichOneof("report") != "welcome" or welcome.role not in ROLES:
            raise LinkBroken("the first report is not a Welcome with a known role")
        if (welcome.worker_id, welcome.incarnation) != (self.record.worker_id, self.record.incarnation):
            raise LinkBroken(f"another process responds there: {welcome.worker_id}:{welcome.incarnation}")
        self._prober.begin(welcome.stream, welcome.probe_key)
        self.computing = from_pb(Computing, welcome)
        self.joined = True
        self.num_joins += 1
        self._log.info("worker_joined", role=ROLES[welcome.role], num_blocks=welcome.num_blocks)
        self._submit(joined_from_pb(welcome, self.record.address))


def _sentence(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return repr(error)


class Prober(asyncio.DatagramProtocol):
    """Probes a worker over UDP: is it alive, and how much of its stream has it written?

    `on_ack` is called once for each response.
    """

    def __init__(self, address: str, on_ack: Callable[[ProbeAck], None]) -> None:
        self._address = address
        self._on_ack = on_ack
        self._stream = 0
        self._key = b""
        self._last_sent = self._last_acked = 0
        self._transport: asyncio.DatagramTransport | None = None

    def begin(self, stream: int, key: bytes) -> None:
        """Set the stream to probe, and the key from the worker's welcome."""
        self._stream, self._key = stream, key

    async def run(self) -> None:
        """Keep a socket open until cancelled. Without one no probe is sent."""
        host, _, port = self._address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: self, remote_addr=(host.strip("[]"), int(port))
            )
        except OSError as error:
            structlog.get_logger().warning("no_probes", address=self._address, reason=str(error))
            return
        try:
            await asyncio.Event().wait()
        finally:
            self._transport.close()

    def send(self) -> None:
        """Send a probe, which may get lost."""
        if self._transport is not None and self._key and not self._transport.is_closing():
            self._last_sent += 1
            self._transport.sendto(seal(Probe(stream=self._stream, number=self._last_sent), self._key))

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """Take an ack, unless a later probe has been acknowledged already."""
        ack = unseal(data, ProbeAck, lambda _: self._key)
        if ack is None or ack.stream != self._stream or not self._last_acked < ack.number <= self._last_sent:
            return
        self._last_acked = ack.number
        self._on_ack(ack)

    def error_received(self, exc: Exception) -> None:
        """Ignore errors, such as a port where nothing listens: a missing response is enough."""
