"""Collects what one turn of the worker core reports, besides its tokens."""

from __future__ import annotations

from engine.core.report import Failure, Filled, Prefilled, Received
from engine.core.sequence import SequenceGroup
from scheduling.columns import PromptLogprobs
from scheduling.cost.cost_model import StepShape


class ReportBuilder:
    """Everything of a `StepReport` but its load, its tokens and what the executor measured."""

    def __init__(self) -> None:
        self.filled: list[Filled] = []
        self.received: list[Received] = []
        self.prefilled: list[Prefilled] = []
        self.prompt_logprobs: list[PromptLogprobs] = []
        self.failures: list[Failure] = []
        self.preempted: list[int] = []
        self.resumed: list[int] = []
        self.parked: list[int] = []
        self.freed: list[int] = []
        self.recomputed_tokens = 0
        self.shape: StepShape | None = None

    @property
    def has_events(self) -> bool:
        """Whether anything happened that is worth a report without a step."""
        return bool(
            self.filled or self.received or self.prefilled or self.failures or self.preempted
            or self.resumed or self.parked or self.freed
        )  # fmt: skip

    def add_prefilled(self, group: SequenceGroup) -> None:
        self.prefilled.append(Prefilled(group.handle, group.num_cached_tokens))
