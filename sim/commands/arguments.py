"""The arguments that `simulate` and `plan` share, and the load that they describe."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from runtime.profiles import load_profile
from runtime.profiles import names as profile_names
from scheduling.cost.profiles import Profile
from scheduling.placement import Placement
from sim.commands.capacity import capacity_per_s, references
from sim.spec import FleetShape
from sim.workload import Promises, draw, read, sample
from sim.workloads.shapes import DEFAULT_CAPS, RequestShape
from sim.workloads.slo import References
from sim.workloads.trace import TraceRequest

USAGE = 2


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a fleet of workers of this profile, without its rate."""

    profile: Profile
    workload: str
    process: str
    duration_s: float
    scale: float
    lengths: tuple[RequestShape, ...]
    references: References
    promises: Promises
    recorded: tuple[TraceRequest, ...] | None = None
    source: str = ""
    """The recorded trace's file."""

    @property
    def name(self) -> str:
        """The name of the workload, or the file of the recorded trace."""
        return self.source or self.workload

    def trace(self, rate: float, seed: int) -> tuple[TraceRequest, ...]:
        """Return the recorded trace, or a drawn one."""
        if self.recorded is not None:
            return self.recorded
        return draw(self.workload, self.process, rate, self.duration_s, seed, self.promises, self.scale)

    def capacity_per_s(self, fleet: FleetShape, placement: Placement) -> float:
        """Return the requests per second that a fleet carries at most, by arithmetic."""
        tpot_ms = self.promises.tpot_ms
        tpot_s = tpot_ms / 1000 if tpot_ms else None
        return capacity_per_s(self.profile, fleet, placement, self.lengths, tpot_s)


def number(low: float, *, above: bool = False) -> Callable[[str], float]:
    """Return a parser of a finite number from `low`, or above it."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < low or (above and value == low):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not accepted: a number {'above' if above else 'from'} {low:g}"
            )
        return value

    return parse


POSITIVE = number(0, above=True)


def numbers(low: float) -> Callable[[str], list[float]]:
    """Return a parser of numbers above `low`, separated by commas."""
    read = number(low, above=True)
    return lambda text: [read(part) for part in text.split(",")]


def whole(low: int) -> Callable[[str], int]:
    """Return a parser of a whole number from `low`."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not accepted: a whole number from {low}")
        return int(text)

    return parse


def placement(text: str) -> Placement:
    """Parse a placement's name."""
    try:
        return Placement(text)
    except ValueError as error:
        wanted = ", ".join(value.value for value in Placement)
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted: {wanted}") from error


def add_load_flags(command: argparse.ArgumentParser, *, duration_s: float) -> None:
    """Add the flags for workload, arrivals and promises."""
    load = command.add_argument_group("the load")
    source = load.add_mutually_exclusive_group()
    source.add_argument(
        "--workload", choices=sorted(DEFAULT_CAPS), default="chat", help="the kind of requests (chat)"
    )
    source.add_argument(
        "--trace", type=Path, metavar="FILE", help="play recorded requests instead: JSON lines"
    )
    load.add_argument(
        "--arrivals", default="poisson", metavar="PROCESS", help="poisson, gamma:CV, onoff or burst (poisson)"
    )
    load.add_argument(
        "--duration-s",
        type=POSITIVE,
        default=duration_s,
        metavar="S",
        help=f"time over which requests arrive ({duration_s:g})",
    )
    load.add_argument("--scale", type=POSITIVE, default=1.0, metavar="X", help="multiplies all lengths (1)")
    slo = command.add_argument_group("promises, as ratios or absolute")
    slo.add_argument(
        "--ttft-x", type=POSITIVE, default=10.0, metavar="X",
        help="TTFT as a multiple of a median prompt without load (10)",
    )  # fmt: skip
    slo.add_argument(
        "--tpot-x", type=POSITIVE, default=2.5, metavar="X",
        help="TPOT as a multiple of a decode step of 32 sequences of 4096 tokens (2.5)",
    )  # fmt: skip
    slo.add_argument("--ttft-ms", type=whole(1), metavar="MS", help="TTFT, absolute (from --ttft-x)")
    slo.add_argument("--tpot-ms", type=whole(1), metavar="MS", help="TPOT, absolute (from --tpot-x)")
    slo.add_argument(
        "--itl-ms", type=whole(1), metavar="MS", help="promise for each gap between tokens (none)"
    )
    slo.add_argument("--no-slo", action="store_true", help="ask for no promise")


def add_profile_flag(command: argparse.ArgumentParser) -> None:
    """Add the flag for the profile that steps are taken from."""
    command.add_argument(
        "--profile",
        type=_profile,
        default="h200-llama-3.1-8b",
        metavar="NAME|PATH",
        help=f"the workers' profile: {', '.join(profile_names())}, or a file (h200-llama-3.1-8b)",
    )


def _profile(name_or_path: str) -> Profile:
    try:
        return load_profile(name_or_path)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def load_of(args: argparse.Namespace) -> Load:
    """Return the load; raise ValueError naming what is wrong."""
    profile: Profile = args.profile
    recorded = read(args.trace) if args.trace is not None else None
    if recorded is not None:
        lengths = tuple(RequestShape(request.prompt_tokens, request.output_tokens) for request in recorded)
    else:
        lengths = tuple(sample(args.workload, args.scale))
    units = references(profile, lengths, args.scale)
    promises = Promises()
    if not args.no_slo:
        promises = Promises(
            args.ttft_ms or units.ttft_ms(args.ttft_x),
            args.tpot_ms or units.tpot_ms(args.tpot_x),
            args.itl_ms,
        )
    return Load(
        profile=profile,
        workload=args.workload,
        process=args.arrivals,
        duration_s=args.duration_s,
        scale=args.scale,
        lengths=lengths,
        references=units,
        promises=promises,
        recorded=recorded,
        source=str(args.trace or ""),
    )
