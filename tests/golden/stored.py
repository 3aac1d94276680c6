"""Reads and writes stored recordings: what routers were told, and all that they decided.

`schema.json` describes the types of all rows. Each recording is JSON lines, compressed by xz: the router's
configuration, then a line for each event, [time, event, [action, ...]]. Configuration, events and actions are
[class, row], where a row is what `router.replay.codec` makes; it holds no names, so that most renames change
`schema.json` alone.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.core.model.actions import Action
from router.core.model.state import CoreConfig
from router.core.simulated_runs import SimulatedEvent, SimulatedRouterCore
from router.errors import Overloaded, Reason, Refused, RouterError, Unavailable
from router.replay.codec import Codec
from router.replay.recording import decode_config, encode_config
from scheduling.admission.admission import Decision
from scheduling.policies import by_name
from scheduling.policies.policy import Policy
from tests.golden.schema import Kind, Schema

FOLDER = Path(__file__).with_name("recordings")
SUFFIX = ".jsonl.xz"
SCHEMA = "schema.json"

Row = list[Any]


@dataclass(slots=True)
class Recording:
    """One stored file, with the names of classes as `schema.json` has them."""

    config: Row
    lines: list[Row]


def paths(folder: Path = FOLDER) -> list[Path]:
    """Return the stored recordings by name."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def read_schema(folder: Path = FOLDER) -> Schema:
    return Schema(**json.loads((folder / SCHEMA).read_text(encoding="ascii")))


def write_schema(schema: Schema, folder: Path = FOLDER) -> None:
    """Write one name a line, so that changes of different names are merged."""
    (folder / SCHEMA).write_text(json.dumps(schema.as_json(), indent=1) + "\n", encoding="ascii")


def read(path: Path) -> Recording:
    renamed = read_schema(path.parent).renamed
    with lzma.open(path, "rt", encoding="ascii") as text:
        config, *lines = map(json.loads, text)
    for _, event, actions in lines:
        for tagged in (event, *actions):
            tagged[0] = renamed.get(tagged[0], tagged[0])
    return Recording([renamed.get(config[0], config[0]), config[1]], lines)


def write(path: Path, recording: Recording) -> None:
    text = "".join(to_text(part) + "\n" for part in (recording.config, *recording.lines))
    path.write_bytes(lzma.compress(text.encode("ascii"), preset=9 | lzma.PRESET_EXTREME))


def to_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def decide(config: CoreConfig, events: Iterable[tuple[float, SimulatedEvent]]) -> Iterator[Row]:
    """Return the line of each event, with what a fresh core decides on it."""
    # It differs from the core of a live router in the one event more that it takes.
    core = SimulatedRouterCore(config)
    for now, event in events:
        actions = encode_actions(core.on(event, now))
        yield [now, encode_event(event), actions]


def decide_again(recording: Recording) -> Iterator[Row]:
    """Return the lines of a stored recording as a fresh core of today's code makes them."""
    config = decode_config(recording.config[1])
    return decide(config, ((now, decode_event(row)) for now, row, _ in recording.lines))


def recording_of(config: CoreConfig, events: Iterable[tuple[float, SimulatedEvent]]) -> Recording:
    named = [CoreConfig.__name__, encode_config(config)]
    return Recording(named, list(decide(config, events)))


def encode_actions(actions: Sequence[Action]) -> list[Any]:
    return [_encode_action(action) for action in actions]


def current_schema() -> Schema:
    """Return the types of all rows as the code has them now."""
    error: Kind = [
        "tuple", "Reason", "str", ["list", "str"], ["optional", "int"], ["optional", "float"],
        ["optional", "Decision"],
    ]  # fmt: skip
    schema = Schema(special={Policy: "Policy", RouterError: error, Refused: error})
    for hint in (CoreConfig, SimulatedEvent, Action, Decision):
        schema.add(hint)
    schema.enums["Reason"] = sorted(reason.name for reason in Reason)
    return schema


def _encode_error(error: RouterError) -> Row:
    retry_after_s = error.retry_after_s if isinstance(error, Refused | Overloaded | Unavailable) else None
    decision = encode_decision(error.decision) if isinstance(error, Refused) else None
    return [
        error.reason.name, str(error), list(error.fields), error.limit, retry_after_s,
        decision,
    ]  # fmt: skip


def _never_decoded(_: Any) -> RouterError:
    raise ValueError("actions are compared as rows, never read")


encode_decision, _ = Codec().of(Decision)
encode_event, decode_event = Codec({Policy: (lambda policy: policy.name, by_name)}).of(SimulatedEvent)
_encode_action, _ = Codec(
    {
        Policy: (lambda policy: policy.name, by_name),
        **dict.fromkeys((RouterError, Refused), (_encode_error, _never_decoded)),
    }
).of(Action)
