"""A router as one process: the core, the calls of the store, links to workers, and the calls of clients.

The core's actions are carried out as `router.links.shell` does. Requests come as messages of the contract,
and leave as such: what a client sees is what the SDK parses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from baton.v1 import inference_pb2
from router.api.convert import content_digest, put_event, request_from_pb
from router.api.status import CODES, status_to_pb
from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    Reject,
    Relay,
    SetTimer,
    StoreAction,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellLeaving,
    TellPromptLogprobs,
    TellQueued,
    TellRetrying,
    WorkerCommand,
)
from router.core.model.events import (
    Arrived,
    CancelAsked,
    ClientGone,
    Event,
    Granted,
    Nudged,
    RouterLeaving,
    RouterStopping,
    StoreForgot,
    TimerFired,
)
from router.core.model.state import CoreConfig
from router.errors import RouterError
from router.intake.validation import checked_program, checked_slo
from router.links.client_stream import ClientStream
from router.links.store_calls import StoreCalls
from router.outputs import OutputReader, Reading
from router.request import RawRequest, Received, Request
from runtime.state import records
from runtime.state.store import Store
from scheduling.request import FinishReason, SamplingParams, StopRules
from tests.dst.nodes.engine import EOS
from tests.dst.nodes.links import WorkerLink
from tests.dst.nodes.store import StoreClient
from tests.dst.nodes.worker import WorkerNode
from tests.dst.world.network import Network
from tests.dst.world.process import Process
from tests.dst.world.rpc import Context, Handler, Servers

TOLD = (
    TellAccepted
    | TellQueued
    | TellPromptLogprobs
    | TellChoiceFinished
    | TellFinished
    | TellLeaving
    | TellRetrying
)
ONLY_CONTENT = OutputReader(Reading(), "")


class RouterNode:
    """One process of a router. `seen` is called with each event of its core and what it decided."""

    def __init__(
        self,
        process: Process,
        network: Network,
        servers: Servers,
        config: CoreConfig,
        store: StoreClient,
        seen: Any,
    ) -> None:
        self.process = process
        self.core = RouterCore(config)
        self.links: dict[str, WorkerLink] = {}
        self.is_leaving = False
        self.streams: dict[int, ClientStream] = {}
        self._network = network
        self._seen = seen
        self._last_listener = 0
        self._router_id = config.router_id
        calls: Any = store
        as_store: Store = calls
        self.store_calls = process.loop.within(
            StoreCalls, as_store, config.caller, self.submit, self._crashed
        )
        store.on_new_epoch = lambda: self.submit_soon(StoreForgot())
        process.loop.spawn(store.listen(config.caller, self._hear))
        process.loop.spawn(store.watch_routers(config.caller))
        handlers: dict[str, Handler] = {
            "Generate": self._generate,
            "Resume": self._resume,
            "Cancel": self._cancel,
        }
        servers[process.name] = process, handlers

    def _crashed(self) -> None:
        raise AssertionError("a call of the store has crashed")

    # The core

    def submit(self, event: Event) -> None:
        actions = self.core.on(event, self.process.clock())
        self._seen(self, event, actions)
        for action in actions:
            self._do(action)

    def submit_soon(self, event: Event) -> None:
        self.process.loop.call_soon(self.submit, event)

    def _do(self, action: Action) -> None:
        match action:
            case Relay():
                self._relay(action)
            case _ if isinstance(action, TOLD):
                stream = self.streams.get(action.listener)
                if stream is not None:
                    stream.push(action)
            case Reject(listener, error):
                stream = self.streams.get(listener)
                if stream is not None:
                    stream.fail(error)
            case _ if isinstance(action, WorkerCommand):
                link = self.links.get(action.worker_key)
                if link is not None:
                    link.send(action)
            case _ if isinstance(action, StoreAction):
                self.store_calls.do(action)
            case SetTimer(timer, at):
                self.process.loop.call_at(at, self.submit, TimerFired(timer))

    def _relay(self, relay: Relay) -> None:
        matches = {(listener, choice): match for listener, choice, match in relay.matches}
        for listener, choice, index, token_id, reason in zip(
            relay.listeners, relay.choices, relay.indexes, relay.token_ids, relay.finish_reasons, strict=True
        ):
            stream = self.streams.get(listener)
            if (
                stream is not None
                and stream.push_token(choice, index, token_id, "", None, free=relay.replayed)
                and reason
            ):
                match = matches.get((listener, choice))
                stream.push(TellChoiceFinished(listener, choice, FinishReason(reason), index + 1, match))

    def _hear(self, notice: records.Notice) -> None:
        match notice:
            case records.Grant(request_key, _, worker_key, decode_key):
                self.submit(Granted(request_key, worker_key, decode_key))
            case records.Nudge():
                self.submit(Nudged())
            case records.Cancelled(tenant, request_id):
                self.submit(CancelAsked(tenant, request_id))

    # Workers

    def discover(self, worker: WorkerNode) -> None:
        """Find a worker that has announced itself."""
        if worker.facts.key not in self.links:
            self.links[worker.facts.key] = WorkerLink(
                self.process, self._router_id, worker, self._network, self.submit
            )

    # Clients

    async def _generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        await self._serve(request, None, inference_pb2.GenerateResponse, context)

    async def _resume(self, request: inference_pb2.ResumeRequest, context: Context) -> None:
        await self._serve(request.request, request, inference_pb2.ResumeResponse, context)

    async def _cancel(self, request: inference_pb2.CancelRequest, context: Context) -> Message:
        running = self.core.is_running(request.tenant, request.request_id)
        self.submit(CancelAsked(request.tenant, request.request_id))
        return inference_pb2.CancelResponse(cancelled=running)

    async def _serve(
        self,
        message: inference_pb2.GenerateRequest,
        resume: inference_pb2.ResumeRequest | None,
        response: Any,
        context: Context,
    ) -> None:
        self._last_listener += 1
        listener = self._last_listener
        stream = self.streams[listener] = ClientStream()
        try:
            raw = request_from_pb(message, resume)
            self.submit(self._arrival(raw, listener, content_digest(message)))
            while True:
                for item in await stream.take():
                    written = response()
                    put_event(written.event, item, ONLY_CONTENT, None, self.process.clock())
                    await context.write(written)
                    if isinstance(item, TellFinished):
                        return
        except RouterError as error:
            status = status_to_pb(error)
            await context.abort(CODES[error.reason], status.message, status.SerializeToString())
        finally:
            if self.streams.pop(listener, None) is not None:
                self.submit(ClientGone(listener))

    def _arrival(self, raw: RawRequest, listener: int, digest: bytes) -> Arrived:
        assert raw.token_ids is not None, "prompts are tokens"
        assert raw.max_tokens is not None, "lengths are stated"
        most = raw.max_tokens
        received = tuple(Received(choice, ids, _end_of(ids, most)) for choice, ids in raw.received)
        return Arrived(
            listener=listener,
            request=Request(
                tenant=raw.tenant,
                request_id=raw.request_id,
                session=raw.session,
                digest=digest,
                prompt_token_ids=raw.token_ids,
                sampling=SamplingParams(n=raw.n or 1, seed=raw.seed or 0),
                seed_given=raw.seed is not None,
                stop=StopRules(raw.max_tokens),
                slo=checked_slo(raw),
                program=checked_program(raw),
                received_at=self.process.clock(),
                resume_grace_s=raw.resume_grace_ms / 1000,
                received=received,
                failed_attempts=raw.failed_attempts,
            ),
        )

    # Its end

    def leave(self, drain_s: float) -> None:
        """Take nothing new; after `drain_s` break off what still runs."""
        self.is_leaving = True
        self.process.do(self.submit, RouterLeaving())
        self.process.loop.call_later(drain_s, self.submit, RouterStopping())


def _end_of(token_ids: Sequence[int], max_tokens: int) -> FinishReason:
    if token_ids and token_ids[-1] == EOS:
        return FinishReason.EOS
    return FinishReason.LENGTH if len(token_ids) >= max_tokens else FinishReason.NONE
