"""docs/configuration.md: every flag of every command, read from the parsers that read the flags."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import benchmarks.__main__
import benchmarks.gpu.__main__
import deploy.controller.config
import gateway.config
import gateway.picker.config
import router.config
import router.replay.replay
import runtime.hub.program
import sim.__main__
import tools.make_profile
from baton.cli.arguments import PACKAGES
from baton.cli.arguments import parser as baton_parser
from benchmarks.__main__ import COMMANDS
from tools.document.markdown import table
from worker.startup.flags import flags as worker_flags

HEADER = """# Configuration

Services and commands are configured by flags alone; there is no configuration file. The one environment
variable that Baton reads is `XDG_CACHE_HOME`, the folder below which workers cache what they measure at
their start, and all services what they read of GGUF files. Those of torch's libraries, such as
`OMP_WAIT_POLICY`, hold as well, and where a model of the hub is fetched, those of its library
([models.md](models.md#models-of-the-hub)). `make docs` generates this page from the parsers of the
commands, and a test fails when the two differ.

A default in words depends on another flag, the profile or the machine. A dash means that nothing is set.

"""
_STATED_DEFAULT = re.compile(r"\s*\((?P<default>[^()]*(?:\([^()]*\))?[^()]*)\)$")


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    summary: str
    parser: argparse.ArgumentParser


def text() -> str:
    """Return the page."""
    sections = [
        ("The `baton` command", list(_subcommands(baton_parser(), "baton", leave_out=PACKAGES))),
        ("Services", list(_services())),
        ("Simulation", list(_subcommands(sim.__main__.flags(), "baton"))),
        ("Measurements", list(_measurements())),
        ("Tools", list(_tools())),
    ]
    return HEADER + "\n".join(
        f"## {title}\n\n" + "\n".join(map(_section, commands)) for title, commands in sections
    )


def _services() -> Iterator[_Command]:
    yield _command("python -m router", router.config.flags(number=0))
    yield _command("python -m gateway", gateway.config.flags())
    yield _command("python -m gateway.picker", gateway.picker.config.flags())
    yield _command("python -m prefill_worker|decode_worker", worker_flags("prefill", number=0))
    yield _command("python -m deploy.controller", deploy.controller.config.flags())


def _measurements() -> Iterator[_Command]:
    for command in _subcommands(benchmarks.__main__.flags(tuple(COMMANDS)), "python -m benchmarks"):
        is_bench = command.name.endswith(" bench")
        yield replace(command, name="baton bench") if is_bench else command
    yield _command("python -m benchmarks.gpu", benchmarks.gpu.__main__.flags())


def _tools() -> Iterator[_Command]:
    yield _command("python -m tools.make_profile", tools.make_profile.flags())
    yield _command("python -m runtime.hub", runtime.hub.program.flags())
    yield _command("python -m router.replay", router.replay.replay.flags())


def _command(name: str, parser: argparse.ArgumentParser) -> _Command:
    return _Command(name, (parser.description or "").partition("\n\n")[0], parser)


def _subcommands(
    parser: argparse.ArgumentParser, prefix: str, leave_out: Collection[str] = ()
) -> Iterator[_Command]:
    (action,) = (each for each in _actions(parser) if isinstance(each, argparse._SubParsersAction))  # noqa: SLF001
    summaries = {each.dest: each.help or "" for each in action._choices_actions}  # noqa: SLF001
    for name, command in action.choices.items():
        if name not in leave_out:
            yield _Command(f"{prefix} {name}", summaries[name], command)


def _section(command: _Command) -> str:
    summary = " ".join(command.summary.split()).rstrip(".")
    rows = [
        _row(action)
        for action in _actions(command.parser)
        if action.dest != "help" and action.help != argparse.SUPPRESS
    ]
    return f"### `{command.name}`\n\n{summary[:1].upper()}{summary[1:]}.\n\n" + table(
        ("Flag", "Default", "Meaning"), rows
    )


def _row(action: argparse.Action) -> tuple[str, str, str]:
    meaning = " ".join((action.help or "").split())
    match = _STATED_DEFAULT.search(meaning)
    if match is not None:
        meaning = meaning[: match.start()]
    if action.choices is not None:
        meaning += f"; accepted: {', '.join(f'`{choice}`' for choice in action.choices)}"
    return f"`{_typed(action)}`", match["default"] if match is not None else _default(action), meaning


def _typed(action: argparse.Action) -> str:
    """Return what a user types: the flag and its value, or a positional argument."""
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if not action.option_strings:
        return value
    flag = action.option_strings[-1]
    if action.nargs == 0:
        return flag
    return f"{flag} [{value}]" if action.nargs == "?" else f"{flag} {value}"


def _default(action: argparse.Action) -> str:
    if action.required:
        return "required"
    if action.nargs == 0:
        return "off"
    return "–" if action.default in (None, "", []) else str(action.default)


def _actions(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    return parser._actions  # noqa: SLF001 - the library has no public name for a parser's arguments
