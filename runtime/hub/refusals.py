"""Why a model of the hub cannot be fetched, and what to do, in one sentence each."""

from __future__ import annotations


class HubRefused(Exception):
    """The model cannot be fetched: the sentence says what was `found` and what to do."""

    def __init__(self, model: str, found: str, advice: str) -> None:
        super().__init__(f"model {model}: {found}; {advice}")
        self.model = model
        self.found = found
        self.advice = advice
