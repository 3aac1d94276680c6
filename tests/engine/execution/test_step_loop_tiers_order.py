"""Where a step is in flight, no copy to or from a tier touches a block that something else may still use."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from torch import Tensor

from engine.core.commands import Decode
from engine.core.report import Mark, Reading
from engine.model.attention.step_batch import StepBatch
from scheduling.request import StopRules
from tests.engine.execution.tiered_engine import HASHES, OTHER, PROMPT, SIZE, Engine
from tests.engine.loop_driver import spec
from tests.engine.noted_order import Order, note_order
from tests.model_zoo import build
from tests.patience import PATIENCE_S


class NotingEngine(Engine):
    """An engine whose steps and copies are noted; a turn takes in a step while the next one is in flight."""

    def __init__(self, directory: Path, order: Order, most_in_host: int) -> None:
        super().__init__(directory, "cpu", None, most_in_host, num_blocks=14, overlaps=True)
        self._order = order
        forward = self.runner.forward

        def noted(batch: StepBatch) -> Tensor:
            order.put("step", *_touched(batch))
            return forward(batch)

        self.runner.forward = noted  # type: ignore[method-assign]

    def read(self, reading: Reading, behind: Mark | None) -> int:
        ended, waited_for = threading.Event(), frozenset[int]()

        def end() -> None:
            nonlocal waited_for
            waited_for = self._order.known
            ended.set()

        running = self.tiers.read(reading.blocks, reading.hashes, end, behind)
        assert ended.wait(PATIENCE_S)
        self._order.learn(waited_for)
        return running.stop()


def _touched(batch: StepBatch) -> tuple[set[int], set[int]]:
    """Return the blocks that a step reads, and those that it writes to."""
    read = set[int]()
    for table, length in zip(batch.block_tables.tolist(), batch.context_lens.tolist(), strict=True):
        read |= set(table[: -(-length // SIZE)])
    return read, {slot // SIZE for slot in batch.slot_mapping.tolist() if slot >= 0}


def test_copies_and_steps_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts push each other out and come back while another sequence runs all the time."""
    order = note_order(monkeypatch)
    engine = NotingEngine(build("llama", tmp_path / "llama"), order, 20)
    background = Decode(spec(1, [7, 8, 9], stop=StopRules(60, ignore_eos=True)))
    engine.loop.turn([background], lambda _: None)
    firsts = [engine.ask(handle, prompt)[0] for handle, prompt in ((2, PROMPT), (3, OTHER))]
    for handle in range(4, 8, 2):
        again = [engine.ask(handle + place, prompt) for place, prompt in enumerate((PROMPT, OTHER))]
        assert [tokens for tokens, _ in again] == firsts
        assert min(cached for _, cached in again) >= len(HASHES) * SIZE
    assert len(order.numbers("gather")) >= 5
    assert len(order.numbers("scatter")) == 4
    assert not order.races()
    engine.tiers.close([], PATIENCE_S)
