"""Workers that speak the real protocol over real gRPC, and compute tokens by a formula instead of a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from baton.v1 import generation_pb2
from baton.worker.v1 import attempt_pb2, worker_pb2, worker_pb2_grpc
from runtime.state.records import WorkerRecord
from runtime.state.store import Store
from tests.ports import free_port
from worker.streams.probes import ProbeResponder

FINGERPRINT = "scripted"
BLOCK_SIZE = 4
EOS = 0


def token_at(prompt: tuple[int, ...], choice: int, index: int) -> int:
    """The token every scripted worker generates there, whatever ran before."""
    return (sum(prompt) * 7 + choice * 31 + index * 13) % 97 + 1


def prompt_logprob(index: int) -> float:
    """Return the log-probability that every scripted worker reports for the prompt token there."""
    return -index / 4


def text_of(token_id: int) -> str:
    return f"<{token_id}>"


@dataclass
class Handoffs:
    """Stands for the KV transfer: which attempts a prefill worker has computed."""

    computed: dict[int, asyncio.Event] = field(default_factory=dict)

    def of(self, handle: int) -> asyncio.Event:
        return self.computed.setdefault(handle, asyncio.Event())


@dataclass
class _Sequence:
    spec: worker_pb2.SequenceSpec
    indexes: dict[int, int]
    """Next index by choice; a choice that ended is gone."""


class ScriptedWorker(worker_pb2_grpc.WorkerServiceServicer):
    """One worker; `step_s` paces its decode steps, `paused` holds them."""

    def __init__(self, role: str, worker_id: str, handoffs: Handoffs, step_s: float = 0.0) -> None:
        self.role, self.worker_id, self.handoffs, self.step_s = role, worker_id, handoffs, step_s
        self.incarnation = "1"
        self.num_blocks, self.max_num_seqs, self.token_budget = 256, 16, 64
        self.fingerprint, self.block_size, self.model_name = FINGERPRINT, BLOCK_SIZE, "model"
        self.adapters: dict[str, str] = {}
        self.commands: list[worker_pb2.WorkRequest] = []
        self.running: dict[int, _Sequence] = {}
        self.fail_next: list[attempt_pb2.Fence] = []
        self.refuse = False
        self.running_step_s = 0.0
        """Seconds that its current step has run, as its heartbeats report."""
        self.cached_tokens = 0
        """Found in its prefix cache for every prompt, as it says."""
        self.lose_commands = self.lose_reports = 0
        """So many of the next messages never arrive, on a stream that lives."""
        self.taken = 0
        self.tells_taken = True
        """Otherwise its reports are like those that a busy router reads late: more of them are written than
        were read, and they tell what it had taken at first."""
        self._probes = ProbeResponder()
        self._probed = self._probes.open()
        self.go = asyncio.Event()
        self.go.set()
        self.tell = asyncio.Event()
        """While it is clear, computed prompts are handed over, and their reports come later."""
        self.tell.set()
        self.draining = False
        """Every report and heartbeat says so."""
        self.address = ""
        self._reports: asyncio.Queue[worker_pb2.WorkResponse] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        self._server = grpc.aio.server()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(f"127.0.0.1:{free_port()}")
        self.address = f"127.0.0.1:{port}"
        self._probes.start("127.0.0.1", port)
        await self._server.start()

    async def stop(self) -> None:
        """Break its stream at once, as if killed."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._probes.stop()
        if self._server is not None:
            await self._server.stop(grace=None)

    async def announce(self, store: Store) -> None:
        await store.register_worker(self.record, ttl_s=600.0)

    @property
    def record(self) -> WorkerRecord:
        return WorkerRecord(
            self.worker_id, self.incarnation, self.role, self.address, self.fingerprint, self.model_name,
            self.block_size, self.num_blocks, adapters=self.adapters,
        )  # fmt: skip

    @property
    def handles(self) -> set[int]:
        return set(self.running)

    async def Work(
        self, requests: AsyncIterator[worker_pb2.WorkRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[worker_pb2.WorkResponse]:
        hello = await anext(aiter(requests))
        assert hello.WhichOneof("command") == "hello"
        self._reports = asyncio.Queue()
        self._probed = self._probes.open()
        self._reports.put_nowait(worker_pb2.WorkResponse(welcome=self._welcome()))
        self.taken = hello.number
        written = 0
        tasks = [self._spawn(self._listen(requests)), self._spawn(self._beat())]
        if self.role == "decode":
            tasks.append(self._spawn(self._decode()))
        try:
            while True:
                response = await self._reports.get()
                if self.lose_reports > 0 and response.WhichOneof("report") == "step":
                    self.lose_reports -= 1
                    written += 1
                    continue
                written += 1
                response.number, response.taken = written, self.taken if self.tells_taken else hello.number
                self._probed.written = written if self.tells_taken else written + 10
                yield response
        finally:
            self.running.clear()
            for task in tasks:
                task.cancel()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _welcome(self) -> worker_pb2.Welcome:
        role = f"WORKER_ROLE_{self.role.upper()}"
        return worker_pb2.Welcome(
            stream=self._probed.number,
            probe_key=self._probed.key,
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            role=role,
            model_name=self.model_name,
            fingerprint=self.fingerprint,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            max_num_seqs=self.max_num_seqs,
            token_budget=self.token_budget,
            cost_model=self.cost_model(),
            load=self._load(),
        )

    def cost_model(self) -> worker_pb2.CostModel:
        """A step costs `step_s`, whatever is in it."""
        seconds = max(self.step_s, 0.0005)
        return worker_pb2.CostModel(
            coefficients=[seconds, 0, 0, 0, 0, 0], knee_tokens=0, ratio_q10=1, ratio_q50=1, ratio_q95=1
        )

    def _load(self) -> worker_pb2.WorkerLoad:
        return worker_pb2.WorkerLoad(
            running=len(self.running), free_blocks=self.num_blocks, draining=self.draining
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            self._reports.put_nowait(
                worker_pb2.WorkResponse(
                    heartbeat=worker_pb2.Heartbeat(
                        load=self._load(), running_step_seconds=self.running_step_s
                    )
                )
            )

    async def _listen(self, requests: AsyncIterator[worker_pb2.WorkRequest]) -> None:
        async for request in requests:
            if self.lose_commands > 0:
                self.lose_commands -= 1
                continue
            self.taken = request.number
            self._probed.taken = request.number
            self.commands.append(request)
            match request.WhichOneof("command"):
                case "prefill":
                    self._spawn(self._prefill(request.prefill.sequence))
                case "receive":
                    self._spawn(self._receive(request.receive.sequence))
                case "decode":
                    self._start(request.decode.sequence, prefilled=True)
                case "cancel":
                    for handle in request.cancel.handles:
                        self.running.pop(handle, None)

    async def _prefill(self, spec: worker_pb2.SequenceSpec) -> None:
        await self.go.wait()
        if self.refuse:
            self.fail(spec.handle)
            return
        first = len(spec.output_token_ids)
        rows = [(spec, choice, first) for choice in spec.choices]
        self.handoffs.of(spec.handle).set()
        await self.tell.wait()
        self.say_prompt(spec)
        self.report(rows, prefilled=[spec.handle])

    async def _receive(self, spec: worker_pb2.SequenceSpec) -> None:
        if self.refuse:
            self.fail(spec.handle)
            return
        await self.handoffs.of(spec.handle).wait()
        self._start(spec, prefilled=False)

    def _start(self, spec: worker_pb2.SequenceSpec, *, prefilled: bool) -> None:
        if self.refuse:
            self.fail(spec.handle)
            return
        first = len(spec.output_token_ids)
        self.running[spec.handle] = _Sequence(spec, dict.fromkeys(spec.choices, first))
        if prefilled:
            self.say_prompt(spec)
            self.report([], prefilled=[spec.handle])

    def say_prompt(self, spec: worker_pb2.SequenceSpec) -> None:
        """Log-probabilities of the prompt, if they are wanted, in two reports."""
        if not spec.sampling.HasField("prompt_logprobs"):
            return
        num_top, end = spec.sampling.prompt_logprobs, len(spec.prompt_token_ids)
        for indexes in (range(1, end // 2), range(end // 2, end)):
            piece = worker_pb2.PromptLogprobs(
                handle=spec.handle,
                first_index=indexes.start,
                logprobs=[prompt_logprob(index) for index in indexes],
                num_top=num_top,
                top_token_ids=[index for index in indexes for _ in range(num_top)],
                top_logprobs=[prompt_logprob(index) for index in indexes for _ in range(num_top)],
            )
            self.say(worker_pb2.StepReport(load=self._load(), prompt_logprobs=[piece]))

    def fail(self, handle: int, **more: Any) -> None:
        said: dict[str, Any] = {"reason": worker_pb2.FAILURE_REASON_INTERNAL, "message": "scripted", **more}
        failure = worker_pb2.SequenceFailure(handle=handle, **said)
        step = worker_pb2.StepReport(load=self._load(), failures=[failure])
        self._reports.put_nowait(worker_pb2.WorkResponse(step=step))

    def say(self, step: worker_pb2.StepReport) -> None:
        """Report anything at all."""
        self._reports.put_nowait(worker_pb2.WorkResponse(step=step))

    async def _decode(self) -> None:
        while True:
            await self.go.wait()
            rows = [
                (entry.spec, choice, index)
                for entry in self.running.values()
                for choice, index in entry.indexes.items()
            ]
            if rows:
                self.report(rows)
            await asyncio.sleep(self.step_s)

    def report(
        self, rows: list[tuple[worker_pb2.SequenceSpec, int, int]], prefilled: list[int] | None = None
    ) -> None:
        """Say these rows, and move the sequences that run here on."""
        columns = attempt_pb2.TokenColumns()
        text = b""
        for spec, choice, index in rows:
            token_id = token_at(tuple(spec.prompt_token_ids), choice, index)
            piece = text_of(token_id).encode()
            ended = index + 1 >= spec.stop.max_tokens
            columns.handles.append(spec.handle)
            columns.choices.append(choice)
            columns.indexes.append(index)
            columns.token_ids.append(token_id)
            reason = (
                generation_pb2.FINISH_REASON_LENGTH if ended else generation_pb2.FINISH_REASON_UNSPECIFIED
            )
            columns.finish_reasons.append(reason)
            columns.text_lengths.append(len(piece))
            text += piece
            if spec.sampling.HasField("logprobs"):
                columns.logprob_rows.append(len(columns.handles) - 1)
                columns.logprobs.append(-0.5)
                columns.top_counts.append(1)
                columns.top_token_ids.append(token_id)
                columns.top_logprobs.append(-0.5)
            self._move_on(spec.handle, choice, ended=ended)
        columns.text_utf8 = text
        handles = prefilled or []
        step = worker_pb2.StepReport(
            tokens=columns, load=self._load(), step_seconds=max(self.step_s, 0.0005),
            prefilled_handles=handles, cached_tokens=[self.cached_tokens] * len(handles),
        )  # fmt: skip
        self._reports.put_nowait(worker_pb2.WorkResponse(step=step))

    def _move_on(self, handle: int, choice: int, *, ended: bool) -> None:
        sequence = self.running.get(handle)
        if sequence is None:
            return
        if ended:
            del sequence.indexes[choice]
            if not sequence.indexes:
                del self.running[handle]
        else:
            sequence.indexes[choice] += 1
