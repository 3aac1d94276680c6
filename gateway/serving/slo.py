"""The SLO and the program of an HTTP request, in fields of every API's body or in headers, and what became
of it.

A response has the parts that are Baton's own: promise, delivery, and an early end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticUseDefault, from_json

from baton.types import Accepted, Delivery, Finished, FinishReason, Program, Promise, Slo, SloClass, TimeSplit
from baton.wire.fields import names_of, rounded, shown
from gateway.serving.errors import Problem, invalid

CLASS_HEADER = "x-baton-slo-class"
HEADERS = {
    "x-baton-ttft-ms": "ttft_ms",
    "x-baton-tpot-ms": "tpot_ms",
    "x-baton-itl-ms": "itl_ms",
    "x-baton-deadline-ms": "deadline_ms",
    CLASS_HEADER: "slo_class",
    "x-baton-allow-at-risk": "allow_at_risk",
}
"""Headers that state what a field of `slo` may state as well."""
PROGRAM_HEADERS = {"x-baton-program-id": "id", "x-baton-program-deadline-ms": "deadline_ms"}
"""Headers that state what a field of `program` may state as well."""
_CHOICES: dict[str, dict[str, Any]] = {
    "slo_class": {slo_class.value: slo_class.value for slo_class in SloClass},
    "allow_at_risk": {"true": True, "false": False},
}
_MAX_DIGITS = 10
MAX_MESSAGES = 4096
"""Messages of a chat: the limit of a router."""


def _stop_at_first_error(schema: Any) -> None:
    """Make the lists and objects in a schema of pydantic's stop at their first wrong entry."""
    if isinstance(schema, dict):
        if schema.get("type") in ("list", "dict"):
            schema["fail_fast"] = True
        for part in schema.values():
            _stop_at_first_error(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _stop_at_first_error(part)


class Strict(BaseModel):
    """A message whose numbers are numbers, read up to the first wrong entry of each list and object.

    Otherwise pydantic collects an error, with its value, for every entry: gigabytes for a body of megabytes.

    Fields that it does not know are taken, and `leave_out_unknown` of `bodies` takes them out again.
    """

    unserved: ClassVar[frozenset[str]] = frozenset()
    """Fields that decide what the output says, and that are refused because they are not served."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first_error(schema)
        return schema


def _default_for_null(value: object) -> object:
    if value is None:
        raise PydanticUseDefault
    return value


NullIsUnset = BeforeValidator(_default_for_null)
"""Marks a field that has its default where a body says null."""


class SloFields(Strict):
    """`baton.Slo`, in milliseconds."""

    ttft_ms: int | None = None
    tpot_ms: int | None = None
    itl_ms: int | None = None
    deadline_ms: int | None = None
    slo_class: Annotated[Literal["interactive", "standard", "batch"], NullIsUnset] = SloClass.STANDARD.value
    allow_at_risk: Annotated[bool, NullIsUnset] = False


class ProgramFields(Strict):
    """`baton.Program`, of which both fields are required."""

    id: str | None = None
    deadline_ms: int | None = None


def slo_of(stated: SloFields | None, headers: Mapping[str, str]) -> Slo:
    """Return the SLO of body and headers; raises `ApiError` where both state one limit."""
    given = _given("slo", stated, headers, HEADERS)
    return Slo(**given | {"slo_class": SloClass(given.get("slo_class", SloClass.STANDARD))})


def program_of(stated: ProgramFields | None, headers: Mapping[str, str]) -> Program | None:
    """Return the program of body and headers; raises `ApiError` where both or only a half is stated."""
    given = _given("program", stated, headers, PROGRAM_HEADERS)
    if stated is None and not given:
        return None
    for header, name in PROGRAM_HEADERS.items():
        if given.get(name) is None:
            accepted = f"set, in the body or as the header {header}"
            raise invalid(f"program.{name}", f"program.{name} is unset; accepted: {accepted}")
    return Program(**given)


def _given(
    field: str, stated: Strict | None, headers: Mapping[str, str], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a field of the body and the headers state; raises `ApiError` where both state one part."""
    given = {} if stated is None else stated.model_dump(exclude_unset=True)
    for header, name in names.items():
        text = headers.get(header)
        if text is None:
            continue
        value = text if name == "id" else _value_of(header, name, text)
        if name in given:
            raise invalid(header, f"{header} is set beside {field}.{name}; accepted: one of them")
        given[name] = value
    return given


def _value_of(header: str, name: str, text: str) -> Any:
    choices = _CHOICES.get(name)
    if choices is None and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
        return int(text)
    if choices is None or text not in choices:
        accepted = "milliseconds, a whole number" if choices is None else ", ".join(choices)
        raise invalid(header, f"{header} is {shown(text)}; accepted: {accepted}")
    return choices[text]


def comment(text: str) -> bytes:
    """Return a server-sent comment, which clients ignore."""
    return f": {text}\n\n".encode()


def early_end(reason: FinishReason, error: str) -> Problem:
    """Return the problem of a generation that the fleet could not continue, or that somebody cancelled."""
    if reason is FinishReason.CANCELLED:
        return Problem(409, "api_error", "the generation was cancelled", code="cancelled")
    return Problem(500, "api_error", error or "the fleet could not continue", code="generation_failed")


def outcome_json(request_id: str, end: Finished, resumes: int) -> dict[str, Any]:
    """Return what was promised and delivered, and where the time went, in milliseconds."""
    return {
        "request_id": request_id,
        "promise": _numbers_in(end.promise),
        "delivery": _numbers_in(end.delivery),
        "time_split": _numbers_in(end.split),
        "attempts": end.usage.attempts,
        "resumes": resumes,
        "path": end.path,
    }


def _numbers_in(part: Promise | Delivery | TimeSplit) -> dict[str, Any]:
    found: dict[str, Any] = rounded({name: getattr(part, name) for name in names_of(type(part))})  # type: ignore[arg-type]  # types are hashable
    return found


def promise_headers(accepted: Accepted) -> dict[str, str]:
    """Return the promise as headers, which a caller has before the first token."""
    promise = accepted.promise
    return {
        "x-request-id": accepted.request_id,
        "x-baton-seed": str(accepted.seed),
        "x-baton-predicted-ttft-ms": f"{promise.predicted_ttft_ms:.1f}",
        "x-baton-predicted-tpot-ms": f"{promise.predicted_tpot_ms:.2f}",
        "x-baton-at-risk": str(promise.at_risk).lower(),
    }


def end_of(reason: FinishReason, *, has_cut_call: bool) -> FinishReason:
    """Return how a choice ended.

    An output with a call that a stop rule cut off is as incomplete as one that reached its limit, which is
    what clients know of calls that must not run.
    """
    return FinishReason.LENGTH if has_cut_call and reason is FinishReason.STOP else reason


def arguments_of(call: str) -> dict[str, Any] | None:
    """Return a call's arguments; None if they broke off, since half of them might be taken for a whole."""
    try:
        arguments = from_json(call)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None
