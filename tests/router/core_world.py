"""A core in the middle of what surrounds it: its actions are carried out, and it is told what comes of them.

Clients hear, the store answers when it is asked to, and workers compute when they are told to. Whatever the
core says to a client or a worker is checked as it is said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from router.core.core import RouterCore
from router.core.model.actions import (
    Action,
    AskGrants,
    AskQueue,
    ChargeTenant,
    Dequeue,
    Enqueue,
    Reject,
    Relay,
    ReleaseCredit,
    ReleaseLease,
    SendCancel,
    SendDecode,
    SendPreCopy,
    SendPrefill,
    SendReceive,
    SendStopAndCopy,
    SetTimer,
    Settle,
    TellAccepted,
    TellChoiceFinished,
    TellFinished,
    TellQuoted,
)
from router.core.model.events import (
    Charged,
    Event,
    GrantsAnswered,
    QueueSeen,
    QuoteAsked,
    SettleAnswered,
    StepReported,
    TimerFired,
    WorkerJoined,
    WorkerLoaded,
)
from router.core.model.state import CoreConfig
from scheduling.admission.shares import Standing
from scheduling.columns import TokenColumns
from scheduling.placement import Placement
from scheduling.request import FinishReason, ReceiveKind, SamplingParams, SequenceSpec, Slo, StopRules
from tests.router.core_driver import ARRIVAL, COST, call, failure_of
from tests.router.core_model import Heard, ModelStore, ModelWorker, Running
from tests.router.scripted_worker import token_at

PROMPT = (3, 5, 7)
CONFIG = CoreConfig("router-a", router_incarnation="1")


class World:
    """Nothing happens in it by itself; `log` has every event the core was told, when, and its answer."""

    def __init__(self, placement: Placement = CONFIG.placement) -> None:
        self.config = replace(CONFIG, placement=placement)
        self.core = RouterCore(self.config)
        self.now = 100.0
        self.store = ModelStore()
        self.store_up = True
        self.calls: list[Action] = []
        """Calls that the store has not answered."""
        self.late: list[Action] = []
        """Calls that failed, and that the store will execute all the same."""
        self.parked: list[tuple[str, int]] = []
        """Worker and handle of groups that were stopped to go on elsewhere, which is not reported yet."""
        self.timers: list[SetTimer] = []
        self.workers: dict[str, ModelWorker] = {}
        self.heard: dict[int, Heard] = {}
        """By listener."""
        self.log: list[tuple[Event, float, list[Action]]] = []
        self.quotes = 0
        self._incarnations = 0

    # Carrying actions out

    def tell(self, event: Event) -> None:
        actions = self.core.on(event, self.now)
        self.log.append((event, self.now, actions))
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:  # noqa: C901, PLR0912 -- a table of actions
        match action:
            case (
                Enqueue()
                | Dequeue()
                | AskGrants()
                | Settle()
                | ReleaseCredit()
                | ReleaseLease()
                | AskQueue()
                | ChargeTenant()
            ):
                self.calls.append(action)
            case SetTimer():
                self.timers.append(action)
            case SendPrefill(worker_key, spec):
                self._start(worker_key, spec, prefills=True)
            case SendReceive(worker_key, spec, _, ReceiveKind.AHEAD):
                self.workers[worker_key].ahead.append(spec.handle)
            case SendReceive(worker_key, spec, _):
                self._start(worker_key, spec, prefills=False)
            case SendPreCopy():
                pass  # the target says when it is done
            case SendStopAndCopy(worker_key, handle):
                if self.workers[worker_key].running.pop(handle, None) is not None:
                    self.parked.append((worker_key, handle))
            case SendDecode(worker_key, spec):
                self._start(worker_key, spec, prefills=False)
            case SendCancel(worker_key, handles):
                self._stop(worker_key, handles)
            case Relay():
                self._relay(action)
            case TellAccepted(listener):
                self.heard[listener].accepted += 1
            case TellChoiceFinished(listener, choice, reason, count):
                heard = self.heard[listener]
                assert choice not in heard.ended
                assert count == heard.first + len(heard.tokens[choice])
                heard.ended[choice] = reason
            case TellFinished(listener) | Reject(listener):
                self.heard[listener].over += 1

    def _start(self, worker_key: str, spec: SequenceSpec, *, prefills: bool) -> None:
        worker = self.workers[worker_key]
        assert spec.handle not in worker.running
        first = len(spec.output_token_ids)
        assert spec.output_token_ids == tuple(token_at(PROMPT, spec.choices[0], i) for i in range(first))
        worker.running[spec.handle] = Running(spec, prefills, dict.fromkeys(spec.choices, first))

    def _stop(self, worker_key: str, handles: tuple[int, ...]) -> None:
        worker = self.workers[worker_key]
        for handle in handles:
            running = worker.running.pop(handle, None)
            if running is not None:
                for choice, index in running.next_index.items():
                    worker.forgotten.append((handle, choice, index, token_at(PROMPT, choice, index)))

    def _relay(self, relay: Relay) -> None:
        for listener, choice, index, token_id, reason in zip(
            relay.listeners, relay.choices, relay.indexes, relay.token_ids, relay.finish_reasons, strict=True
        ):
            heard = self.heard[listener]
            assert heard.accepted == 1
            assert not heard.over
            assert choice not in heard.ended
            assert index == heard.first + len(heard.tokens[choice])
            assert token_id == token_at(PROMPT, choice, index)
            heard.tokens[choice].append(token_id)
            if reason:
                heard.ended[choice] = FinishReason(reason)

    # Clients

    def arrive(self, request_id: str, n: int, max_tokens: int, grace_s: float, slo: Slo) -> None:
        """A client calls, and listens from now on."""
        listener = len(self.heard) + 1
        self.heard[listener] = Heard(max_tokens)
        changes: dict[str, Any] = {
            "digest": bytes([n, max_tokens]),
            "prompt_token_ids": PROMPT,
            "sampling": SamplingParams(n=n),
            "seed_given": False,
            "stop": StopRules(max_tokens),
            "received_at": self.now,
            "resume_grace_s": grace_s,
        }
        self.tell(call(ARRIVAL, listener=listener, request_id=request_id, slo=slo, **changes))

    def ask_for_a_quote(self, slo: Slo, tokens: int) -> None:
        """A client asks what a prompt of so many tokens would be promised, and hears it at once."""
        self.quotes += 1
        waiting = len(self.store.queue)
        asked = QuoteAsked(-self.quotes, tokens, 1, 5, slo, waiting, waiting * len(PROMPT))
        actions = self.core.on(asked, self.now)
        self.log.append((asked, self.now, actions))
        answers = [entry for entry in actions if isinstance(entry, TellQuoted | Reject)]
        assert [answer.listener for answer in answers] == [-self.quotes]
        for action in actions:
            if not isinstance(action, TellQuoted | Reject):
                self._carry_out(action)

    # The store

    def answer(self, call: Action) -> None:
        match call:
            case Enqueue(entry):
                self.tell(self.store.enqueue(entry))
            case Dequeue(key):
                self.store.dequeue(key)
            case AskGrants(worker):
                for grant in self.store.grant(call):
                    self.tell(grant)
                self.tell(GrantsAnswered(worker.key))
            case Settle():
                done = self.store.settle(call)
                self.tell(SettleAnswered(call.request_key, call.prefill_key, done.decode_key, done.outcome))
            case ReleaseCredit(key, worker_key):
                self.store.release_credit(key, worker_key)
            case ReleaseLease(key, worker_key):
                self.store.release_lease(key, worker_key)
            case AskQueue():
                self.tell(QueueSeen(len(self.store.queue), 0))
            case ChargeTenant(request_key):
                self.tell(Charged(request_key, Standing(0.0, None, 0, is_over=False)))

    def lose(self, call: Action, *, is_late: bool) -> None:
        """Execute a call now, or at a later time, and never answer it."""
        self.store.forgiven.add(key_of(call))
        if is_late:
            self.late.append(call)
        else:
            self.execute(call)
        self.tell(failure_of(call))

    def execute(self, call: Action) -> None:
        """Let the store execute a call of which nobody hears any more."""
        match call:
            case Enqueue(entry):
                self.store.enqueue(entry)
            case Dequeue(key):
                self.store.dequeue(key)
            case AskGrants():
                self.store.grant(call)
            case Settle():
                self.store.settle(call)
            case ReleaseCredit(key, worker_key):
                self.store.release_credit(key, worker_key)
            case ReleaseLease(key, worker_key):
                self.store.release_lease(key, worker_key)

    # Workers

    def park(self) -> None:
        """Workers report what they have stopped, and the copies that came ahead."""
        parked, self.parked = self.parked, []
        for worker_key, handle in parked:
            worker = self.workers.get(worker_key)
            if worker is not None:
                self.tell(StepReported(worker_key, TokenColumns(), worker.load, parked=(handle,)))
        for worker in list(self.workers.values()):
            ahead, worker.ahead = worker.ahead, []
            for handle in ahead:
                copied = StepReported(
                    worker.facts.key, TokenColumns(), worker.load, prefilled=(handle,), cached_tokens=(0,)
                )
                self.tell(copied)

    def drain(self, worker: ModelWorker) -> None:
        """A worker takes nothing new from now on."""
        worker.is_draining = True
        self.tell(WorkerLoaded(worker.facts.key, worker.load))

    def join(self, name: str, role: str) -> None:
        self._incarnations += 1
        worker = ModelWorker(name, role, self._incarnations)
        self.workers[worker.facts.key] = worker
        self.tell(WorkerJoined(worker.facts, worker.load, COST))

    def step(self, worker: ModelWorker, handles: list[int]) -> None:
        """Every choice of these gets a token."""
        rows: list[tuple[int, int, int, int, int]] = []
        prefilled = []
        for handle in handles:
            running = worker.running[handle]
            spec = running.spec
            if min(running.next_index.values()) == len(spec.output_token_ids):
                prefilled.append(handle)
            for choice, index in list(running.next_index.items()):
                ended = index + 1 >= spec.stop.max_tokens
                reason = FinishReason.LENGTH if ended else FinishReason.NONE
                rows.append((handle, choice, index, token_at(PROMPT, choice, index), int(reason)))
                running.next_index[choice] += 1
                if ended:
                    del running.next_index[choice]
            if running.prefills or not running.next_index:
                del worker.running[handle]
        self.report(worker, rows, prefilled)

    def report(
        self,
        worker: ModelWorker,
        rows: list[tuple[int, int, int, int, int]],
        prefilled: list[int] | None = None,
    ) -> None:
        """Rows are handle, choice, index, token and finish reason."""
        handles, choices, indexes, token_ids, reasons = zip(*rows, strict=True) if rows else ((),) * 5
        tokens = TokenColumns(handles, choices, indexes, token_ids, reasons)
        done = prefilled or []
        self.tell(
            StepReported(
                worker.facts.key, tokens, worker.load, 0.01, prefilled=done, cached_tokens=[0] * len(done)
            )
        )

    def release(self, handles: set[int]) -> None:
        """Decode workers hold these no more, unless they have decoded some of them."""
        for worker in [worker for worker in self.workers.values() if worker.facts.role == "decode"]:
            released = [
                handle
                for handle in sorted(handles & worker.running.keys())
                if set(worker.running[handle].next_index.values())
                == {len(worker.running[handle].spec.output_token_ids)}
            ]
            for handle in released:
                del worker.running[handle]
            if released:
                self.tell(StepReported(worker.facts.key, TokenColumns(), worker.load, released=released))

    # Time

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now]
        self.timers = [timer for timer in self.timers if timer.at > self.now]
        for entry in due:
            self.tell(TimerFired(entry.timer))

    def behave(self) -> None:
        """The store answers all it is asked, and workers compute all they have, until nothing is left."""
        self.store_up = True
        for _ in range(400):
            while self.late:
                self.execute(self.late.pop(0))
            while self.calls:
                self.answer(self.calls.pop(0))
            self.park()
            for worker in list(self.workers.values()):
                if worker.running:
                    self.step(worker, sorted(worker.running))
            self.store.expire()
            self.pass_time(0.2)
            state = self.core.state
            if not (state.live or state.to_dequeue or state.to_release or self.calls):
                break


def key_of(call: Action) -> str:
    """Return the key of a call of the store; calls of one key are answered in order."""
    match call:
        case Enqueue(entry):
            return entry.request_key
        case AskGrants(worker):
            return worker.key
        case Dequeue(key) | ReleaseCredit(key) | ReleaseLease(key) | Settle(key) | ChargeTenant(key):
            return key
        case _:
            return ""
