"""A worker's profile: a device that serves a model, with its step costs and its memory.

The simulator and the timed engine use a profile instead of computing. It is stored as JSON for people to
read: every coefficient has a name, and `measured` and `derived` say where the numbers come from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scheduling.cost_model import Band, CostModel

FORMAT = 1
COEFFICIENTS = (
    "step_s",
    "sequence_s",
    "token_s",
    "decode_context_s",
    "chunk_attention_s",
    "chunk_context_s",
)
"""(a0, c1, c3, c4, c5, c6) of `CostModel`, in seconds each."""

_TEXTS = ("name", "model_name", "host", "weights_fingerprint")
_COUNTS = ("block_size", "kv_bytes_per_token", "num_blocks", "max_num_seqs", "token_budget", "max_context")
_RATES = ("handoff_bytes_per_s", "swap_bytes_per_s")
_NOTES = ("measured", "derived")
_COST = (*COEFFICIENTS, "knee_tokens", "ratio_q10", "ratio_q50", "ratio_q95")
_FLOOR = "chunk_floor_s"
"""Another field of the cost; 0 if it is missing."""
_CHUNK_BAND = ("chunk_ratio_q10", "chunk_ratio_q50", "chunk_ratio_q95")
"""More fields of the cost, which are there together or not at all."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile; raises ValueError naming the field, its value and what it accepts.

    num_blocks           KV blocks of `block_size` tokens that fit beside the weights
    token_budget         most tokens of one step
    max_context          most tokens of one sequence, prompt and output
    handoff_bytes_per_s  KV from one such worker to another
    swap_bytes_per_s     KV to the host's memory, and back
    weights_fingerprint  "" if the profile holds for any weights of that shape
    host                 the machine that was measured
    """

    name: str
    model_name: str
    block_size: int
    kv_bytes_per_token: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
    max_context: int
    cost: CostModel
    handoff_bytes_per_s: float
    swap_bytes_per_s: float
    host: str
    weights_fingerprint: str = ""
    measured: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("name", "model_name"):
            if not getattr(self, field):
                raise ValueError(f"{field} is empty; accepted: a name")
        for field in _COUNTS:
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"{field} is {value}; accepted: a whole number from 1")
        for field in _RATES:
            rate = getattr(self, field)
            if not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"{field} is {rate}; accepted: a finite number above 0")

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.kv_bytes_per_token


def parse(text: str) -> Profile:
    """Read a profile that `dump` or a person wrote; raise ValueError naming the field and what it accepts."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"profile is not JSON ({error}); accepted: an object as `dump` writes it") from error
    fields = _object("profile", document)
    _check_keys("profile", fields, ("format", *_TEXTS, *_COUNTS, *_RATES, *_NOTES, "cost"))
    if fields["format"] != FORMAT:
        raise ValueError(f"format is {fields['format']!r}; accepted: {FORMAT}")
    readers = ((_TEXTS, _text), (_COUNTS, _whole), (_RATES, _number), (_NOTES, _notes))
    values: dict[str, Any] = {field: read(field, fields[field]) for names, read in readers for field in names}
    return Profile(**values, cost=parse_cost(fields["cost"]))


def dump(profile: Profile) -> str:
    """Return the JSON that `parse` reads."""
    fields = asdict(profile) | {"cost": cost_fields(profile.cost)}
    order = ("name", "model_name", "host", *_NOTES, *_COUNTS, *_RATES, "weights_fingerprint", "cost")
    document = {"format": FORMAT} | {field: fields[field] for field in order}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def parse_cost(value: object) -> CostModel:
    """Read the fields that `cost_fields` wrote; raise ValueError naming the field."""
    fields = _object("cost", value)
    fields = {**fields, _FLOOR: fields.get(_FLOOR, 0.0)}
    names = (*_COST, _FLOOR, *(_CHUNK_BAND if any(field in fields for field in _CHUNK_BAND) else ()))
    _check_keys("cost", fields, names)
    numbers = {field: _number(f"cost.{field}", fields[field]) for field in names}
    for field, number in numbers.items():
        accepts_zero = "ratio_" not in field
        if not math.isfinite(number) or number < 0 or (number == 0 and not accepts_zero):
            accepted = "a finite number from 0" if accepts_zero else "a finite number above 0"
            raise ValueError(f"cost.{field} is {number}; accepted: {accepted}")
    band = [numbers.pop(field) for field in _CHUNK_BAND if field in numbers]
    *coefficients, knee, q10, q50, q95, floor_s = numbers.values()
    chunk_band = Band(*band) if band else None
    return CostModel(tuple(coefficients), knee, q10, q50, q95, chunk_floor_s=floor_s, chunk_band=chunk_band)


def cost_fields(cost: CostModel) -> dict[str, float]:
    """Return a cost model as named fields, for JSON."""
    fields = dict(zip(COEFFICIENTS, cost.coefficients, strict=True)) | {
        "knee_tokens": cost.knee_tokens,
        "ratio_q10": cost.ratio_q10,
        "ratio_q50": cost.ratio_q50,
        "ratio_q95": cost.ratio_q95,
    }
    fields |= {_FLOOR: cost.chunk_floor_s} if cost.chunk_floor_s else {}
    if (band := cost.chunk_band) is not None:
        fields |= dict(zip(_CHUNK_BAND, (band.q10, band.q50, band.q95), strict=True))
    return fields


def _object(field: str, value: object) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise ValueError(f"{field} is {type(value).__name__}; accepted: an object")


def _check_keys(field: str, found: Mapping[str, Any], accepted: tuple[str, ...]) -> None:
    missing = [key for key in accepted if key not in found]
    unknown = [key for key in found if key not in accepted]
    if missing or unknown:
        wrong = [f"lacks {key}" for key in missing] + [f"has {key!r}" for key in unknown]
        raise ValueError(f"{field} {', '.join(wrong)}; accepted: exactly {', '.join(accepted)}")


def _text(field: str, value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{field} is {value!r}; accepted: a string")


def _whole(field: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{field} is {value!r}; accepted: a whole number from 1")


def _number(field: str, value: object) -> float:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass
    raise ValueError(f"{field} is {value!r}; accepted: a finite number")


def _notes(field: str, value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return tuple(value)
    raise ValueError(f"{field} is {value!r}; accepted: a list of strings")
