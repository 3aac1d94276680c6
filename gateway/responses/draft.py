"""One response in the making: the events of its generation as events of the API, and what it is so far."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from baton.parsing import deltas_of
from baton.types import Accepted, ChoiceFinished, Finished, FinishReason, Tokens
from baton.types import Event as FleetEvent
from baton.types.deltas import ContentDelta, CutCalls, Delta, TextDelta
from gateway.responses.events import Event, Output, deltas_in
from gateway.serving.errors import Problem
from gateway.serving.slo import early_end, end_of, outcome_json

_INCOMPLETE = {
    FinishReason.LENGTH: "max_output_tokens",
    # OpenAI has no deadlines.
    FinishReason.DEADLINE: "deadline",
}


def unix_s() -> float:
    """Return the time of day, which responses state."""
    return time.time()


def owner_of(response: dict[str, Any]) -> str:
    """Return what the ids of a response's items have in common with its own."""
    return str(response["id"]).removeprefix("resp_")


class Draft:
    """A response in the making. `response` is what it is so far, as clients see it."""

    def __init__(self, head: dict[str, Any], accepted: Accepted) -> None:
        self.output = Output(owner_of(head))
        self._accepted = accepted
        self._cut_calls = CutCalls()
        self._end: ChoiceFinished | None = None
        self._num_reasoning = 0
        self.response = head | {"status": "in_progress", "output": self.output.items}
        self.problem: Problem | None = None
        """Why the fleet ended it early."""

    def opening(self) -> list[Event]:
        return [self._lifecycle("created"), self._lifecycle("in_progress")]

    def of(self, event: FleetEvent) -> list[Event]:
        """Return the output's events of one event of the fleet's."""
        match event:
            case Tokens():
                events = self._said(deltas_of(event, self._accepted))
                if self.output.is_reasoning:
                    self._num_reasoning += len(event.token_ids)
                return events
            case ChoiceFinished():
                self._end = event
        return []

    def add(self, deltas: Sequence[TextDelta], num_tokens: int) -> None:
        """Add the text of deltas, whose events the caller has."""
        for delta in deltas:
            self.output.add(delta)
        if self.output.is_reasoning:
            self._num_reasoning += num_tokens

    def finish(self, finished: Finished, request_id: str, resumes: int) -> list[Event]:
        """End the output. Only `closing` remains to be sent."""
        assert self._end is not None
        usage = finished.usage
        self.response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_prompt_tokens, "cache_write_tokens": 0},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self._num_reasoning},
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
        }
        self.response["baton"] = outcome_json(request_id, finished, resumes)
        return self.end(self._end, finished.error)

    def end(self, end: ChoiceFinished, error: str) -> list[Event]:
        """Return the last events of the output, and set how the response ended."""
        events = self._said(end.deltas)
        reason = end_of(end.reason, has_cut_call=bool(self._cut_calls))
        if reason in {FinishReason.CANCELLED, FinishReason.FAILED}:
            events += self.fail(early_end(reason, error))
            if reason is FinishReason.CANCELLED:
                self.response["status"] = "cancelled"
            return events
        if not self.output.items:
            events += self.output.of(ContentDelta(""))  # clients look for a message
        why = _INCOMPLETE.get(reason)
        status = "incomplete" if why else "completed"
        self.response |= {
            "status": status,
            "incomplete_details": {"reason": why} if why else None,
            "completed_at": None if why else unix_s(),
        }
        return events + self.output.end(status)

    def fail(self, problem: Problem) -> list[Event]:
        """End the response with an error. Only `closing` remains to be sent."""
        self.problem = problem
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        error = {"code": code, "message": problem.message, "type": problem.code or None}
        self.response |= {"status": "failed", "error": error}
        return self.output.end("incomplete")

    def closing(self) -> Event:
        """Return the last event, which has the whole response."""
        status = self.response["status"]
        return self._lifecycle(status if status in {"completed", "incomplete"} else "failed")

    def _said(self, deltas: Sequence[Delta]) -> list[Event]:
        events = []
        for delta in deltas:
            self._cut_calls.add(delta)
            events += self.output.of(delta)
        return events

    def _lifecycle(self, name: str) -> Event:
        # The output as it is now: events are encoded later.
        output = [dict(item) for item in self.output.items]
        return {"type": f"response.{name}", "response": self.response | {"output": output}}


def replayed(response: dict[str, Any]) -> list[Event]:
    """Return the events of a response that has ended before."""
    output = Output(owner_of(response))
    unset: dict[str, Any] = {"output": [], "usage": None, "completed_at": None, "incomplete_details": None}
    begun = response | unset | {"status": "in_progress"}
    events = [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]
    for delta in deltas_in(response["output"]):
        events += output.of(delta)
    events += output.end(response["status"])
    return [*events, {"type": f"response.{response['status']}", "response": response}]
