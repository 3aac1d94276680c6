"""The SLO of an HTTP request: the field `slo` of every API's body, or headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticUseDefault

from baton.types import Slo, SloClass
from baton.wire.shown import shown
from gateway.errors import invalid

HEADERS = {
    "x-baton-ttft-ms": "ttft_ms",
    "x-baton-tpot-ms": "tpot_ms",
    "x-baton-itl-ms": "itl_ms",
    "x-baton-deadline-ms": "deadline_ms",
}
CLASS_HEADER = "x-baton-slo-class"
AT_RISK_HEADER = "x-baton-allow-at-risk"
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

    Fields that it does not know are taken, and `gateway.bodies.leave_out_unknown` takes them out again.
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


def slo_of(stated: SloFields | None, headers: Mapping[str, str]) -> Slo:
    """Return the SLO of body and headers; raises `ApiError` where both state one limit."""
    given = {} if stated is None else stated.model_dump(exclude_unset=True)
    for header, name in HEADERS.items():
        text = headers.get(header)
        if text is None:
            continue
        if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
            raise invalid(header, f"{header} is {shown(text)}; accepted: milliseconds, a whole number")
        _once(given, name, header)
        given[name] = int(text)
    classes = [slo_class.value for slo_class in SloClass]
    for header, name, accepted in (
        (CLASS_HEADER, "slo_class", classes),
        (AT_RISK_HEADER, "allow_at_risk", ["true", "false"]),
    ):
        text = headers.get(header)
        if text is None:
            continue
        if text not in accepted:
            raise invalid(header, f"{header} is {shown(text)}; accepted: {', '.join(accepted)}")
        _once(given, name, header)
        given[name] = text == "true" if name == "allow_at_risk" else text
    return Slo(**given | {"slo_class": SloClass(given.get("slo_class", SloClass.STANDARD))})


def _once(given: dict[str, Any], name: str, header: str) -> None:
    if name in given:
        raise invalid(header, f"{header} is set beside slo.{name}; accepted: one of them")
