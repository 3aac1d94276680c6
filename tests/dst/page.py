"""One run as a page that needs no other file: lanes, messages, faults, and the promise that broke.

`page.html` is the page without the run. It draws on canvases, since a run has thousands of messages.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tests.dst.nodes.client import Heard
from tests.dst.record import Recorder
from tests.dst.run import Outcome
from tests.dst.scenario import CLIENT, DECODE, PREFILL, ROUTER, STORE, Fault, Scenario, draw, role_of

TEMPLATE = Path(__file__).with_name("page.html")
ROLES = (CLIENT, ROUTER, STORE, PREFILL, DECODE)
"""Lanes from top to bottom."""

SHOWN_AROUND_S = 0.15
SENTENCES = {
    "kill": "{struck} is killed; another one takes its place",
    "stop": "{struck} stands still",
    "drain": "{struck} is told to leave",
    "jump": "the clock of {struck} jumps forward",
    "cut": "the link {struck} is cut",
    "half-open": "the link {struck} is half open: messages wait, and nobody learns it",
    "island": "the links {struck} are cut",
    "slow": "the link {struck} is slow",
}


def write_page(path: Path, scenario: Scenario, recorder: Recorder, outcome: Outcome) -> None:
    """Write the page of a run."""
    path.write_text(page(scenario, recorder, outcome), encoding="utf-8")


def page(scenario: Scenario, recorder: Recorder, outcome: Outcome) -> str:
    """Return the page's HTML."""
    broken = outcome.broken
    data = json.dumps(_data(scenario, recorder, outcome), ensure_ascii=False, separators=(",", ":"))
    parts = {
        "title": f"Seed {scenario.seed} {'keeps every promise' if broken is None else 'breaks a promise'}",
        "verdict": _verdict(outcome),
        "facts": f"<p>{escape(_facts(scenario, recorder, outcome))}</p>",
        "calls": _calls(recorder),
        "faults": _faults(scenario, recorder),
        "replay": escape(replay_command(scenario)),
        "scenario": escape(scenario.to_json()),
        "data": data.replace("</", "<\\/").replace("<!--", "<\\u0021--"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], TEMPLATE.read_text(encoding="utf-8"))


def replay_command(scenario: Scenario) -> str:
    """Return the command that plays a run again: by its seed, if that is all of it."""
    if scenario == draw(scenario.seed):
        return f"python -m tests.dst --seed {scenario.seed}"
    return "python -m tests.dst --replay run.json   # with the lines below in run.json"


# What stands on the page as text


def _verdict(outcome: Outcome) -> str:
    if outcome.broken is None:
        said = "Every promise was kept." if outcome.num_events else "Nothing happened."
        return f'<p class="verdict"><strong>{said}</strong></p>'
    promise, found = escape(outcome.broken.promise), escape(outcome.broken.found)
    at = f"at {outcome.simulated_s:.4f} s"
    return f'<p class="verdict broken"><strong>Broke {at}: {promise}.</strong><br>{found}</p>'


def _facts(scenario: Scenario, recorder: Recorder, outcome: Outcome) -> str:
    counts = {
        "clients": scenario.clients,
        "routers": scenario.routers,
        "prefill workers": scenario.prefill,
        "decode workers": scenario.decode,
    }
    fleet = ", ".join(
        f"{count} {name if count > 1 else name[:-1]}" for name, count in counts.items() if count
    )
    lost = sum(trip.taken_at is None and not trip.is_unwanted for trip in recorder.messages)
    return (
        f"{fleet}; placement {scenario.placement}, policy {scenario.policy}, {scenario.num_blocks} blocks "
        f"each. {outcome.simulated_s:.1f} s of virtual time; {len(recorder.messages)} messages, of which "
        f"{lost} never arrived; {outcome.num_events} events of router cores; {len(recorder.bands)} of "
        f"{len(scenario.faults)} faults struck."
    )


def _calls(recorder: Recorder) -> str:
    rows = [
        (
            heard.request_id,
            client,
            f"{heard.began_at:.3f} s",
            "never" if heard.ended_at is None else f"{heard.ended_at:.3f} s",
            f"{len(heard.prompt)} → {heard.num_choices} × {heard.max_tokens}",
            _end_of(heard),
        )
        for client, heard in recorder.calls
    ]
    return _table(("request", "client", "began", "ended", "tokens", "end"), rows)


def _end_of(heard: Heard) -> str:
    if not heard.is_over:
        end = "goes on"
    elif heard.was_left:
        end = "left by its caller"
    else:
        end = heard.error or "complete"
    got = ", ".join(str(len(tokens)) for _, tokens in sorted(heard.tokens.items())) or "0"
    resumed = f", resumes: {heard.resumes}" if heard.resumes else ""
    return f"{end}, {got} tokens received{resumed}" + (f"; {heard.wrong}" if heard.wrong else "")


def _faults(scenario: Scenario, recorder: Recorder) -> str:
    if not scenario.faults:
        return "<p>None.</p>"
    struck = dict(recorder.bands)
    rows = [
        (
            f"{struck[fault]:.4f} s" if fault in struck else "did not strike",
            _sentence(fault),
            f"{fault.lasts_s:g} s",
            _plan(fault),
        )
        for fault in sorted(scenario.faults, key=lambda fault: struck.get(fault, math.inf))
    ]
    return _table(("struck", "fault", "for", "planned"), rows)


def _plan(fault: Fault) -> str:
    if fault.upon is None:
        return f"at {fault.at or 0.0:g} s"
    return f"{fault.after_s:g} s after {' reached '.join(fault.upon)}"


def _sentence(fault: Fault) -> str:
    said = SENTENCES.get(fault.kind, fault.kind + " strikes {struck}")
    return said.format(struck=_struck(fault))


def _struck(fault: Fault) -> str:
    arrow = "↔" if fault.both else "→"
    if fault.kind == "island":
        return f"{fault.target} {arrow} every {fault.peer}"
    return f"{fault.target} {arrow} {fault.peer}" if fault.peer else fault.target


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in rows)
    return f'<table class="plain"><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>'


# What the page draws


def _data(scenario: Scenario, recorder: Recorder, outcome: Outcome) -> dict[str, Any]:
    lives: dict[str, list[list[float | None]]] = {}
    for life in recorder.lives:
        lives.setdefault(life.process, []).append([life.begin, life.end])
    names = sorted(lives, key=lambda name: (ROLES.index(role_of(name)), name))
    lanes = {name: place for place, name in enumerate(names)}
    requests = {
        name: place
        for place, name in enumerate(dict.fromkeys(heard.request_id for _, heard in recorder.calls))
    }
    end = max(outcome.simulated_s, 0.001)

    def known(about: Iterable[str]) -> list[int]:
        return [requests[each] for each in about if each in requests]

    return {
        "end": end,
        "view": _view(scenario, recorder, end, broke=outcome.broken is not None),
        "broken": outcome.broken and {"promise": outcome.broken.promise, "at": end},
        "requests": list(requests),
        "lanes": [
            {"name": name, "role": "" if name == STORE else role_of(name), "lives": lives[name]}
            for name in names
        ],
        "messages": [
            [
                lanes[trip.source],
                lanes[trip.target],
                trip.what,
                known(trip.requests),
                round(trip.sent_at, 6),
                trip.due_at,
                trip.taken_at,
                int(trip.is_unwanted),
            ]
            for trip in recorder.messages
        ],
        "events": [
            *(
                [event.at, lanes[event.process], event.text, known(event.requests), event.details, event.kind]
                for event in recorder.events
            ),
            *(
                [at, lanes[client], text, known([heard.request_id]), "", "call"]
                for client, heard in recorder.calls
                for at, text in _of_call(heard)
            ),
        ],
        "bands": list(_bands(recorder, lanes, end)),
        "phases": [_phases(recorder, name, end) for name in requests],
    }


def _view(scenario: Scenario, recorder: Recorder, end: float, *, broke: bool) -> tuple[float, float]:
    """Return what is shown first: the scenario's calls, and the moment it broke if that is near."""
    asked = {request.name for request in scenario.requests}
    calls = [heard for _, heard in recorder.calls if heard.request_id in asked]
    begin = min((heard.began_at for heard in calls), default=0.0)
    last = max((heard.ended_at or end for heard in calls), default=end)
    if broke and end < last + 2.0:
        last = end
    margin = max(SHOWN_AROUND_S, (last - begin) * 0.04)
    return max(0.0, begin - margin), min(end + margin, last + margin)


def _of_call(heard: Heard) -> Iterator[tuple[float, str]]:
    choices = f"{heard.num_choices} choice{'s' if heard.num_choices > 1 else ''}"
    yield (
        heard.began_at,
        f"asks {heard.request_id}: {len(heard.prompt)} tokens, {choices} of {heard.max_tokens} tokens",
    )
    if heard.ended_at is not None:
        yield heard.ended_at, f"{heard.request_id} has ended: {_end_of(heard)}"


def _bands(recorder: Recorder, lanes: dict[str, int], end: float) -> Iterator[dict[str, Any]]:
    rows: list[tuple[float, float, set[int], int]] = []
    for fault, began in recorder.bands:
        over = began + (0.0 if fault.kind == "jump" else fault.lasts_s)
        struck = {place for name, place in lanes.items() if _is_struck(fault, name)}
        taken = {
            row for begin, until, others, row in rows if others & struck and begin < over and began <= until
        }
        row = next(each for each in range(len(rows) + 1) if each not in taken)
        rows.append((began, over, struck, row))
        label = f"{fault.kind} {_struck(fault)}"
        yield {
            "label": label,
            "title": f"{label} at {began:.2f} s",
            "sentence": f"{began:.4f} s to {over:.4f} s: {_sentence(fault)}",
            "lanes": sorted(struck),
            "begin": began,
            "end": min(over, end),
            "row": row,
        }


def _is_struck(fault: Fault, name: str) -> bool:
    is_peer = role_of(name) == fault.peer if fault.kind == "island" else name == fault.peer
    return is_peer or name == fault.target


def _phases(recorder: Recorder, name: str, end: float) -> list[tuple[float, float, str]]:
    """Return the phases of a request, each until the next one, and the last one until its calls are over."""
    over = max(
        (heard.ended_at or end for _, heard in recorder.calls if heard.request_id == name), default=end
    )
    reached = [(at, phase) for at, request_id, phase in recorder.phases if request_id == name]
    ends = [*(at for at, _ in reached[1:]), over]
    return [
        (at, max(at, until), phase)
        for (at, phase), until in zip(reached, ends, strict=True)
        if phase != "ended"
    ]
