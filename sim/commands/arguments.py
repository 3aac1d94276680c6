"""The arguments that `simulate` and `plan` share, and the load that they describe."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import NoReturn

from runtime.profiles import load_profile
from runtime.profiles import names as profile_names
from scheduling.cost.profiles import Profile
from scheduling.placement import Placement
from sim.commands.capacity import capacity_per_s, references
from sim.commands.recorded import Recorded, add_source_flags, read_trace
from sim.commands.values import POSITIVE, whole
from sim.spec import FleetShape
from sim.workload import Promises, draw, sample
from sim.workloads.shapes import RequestShape
from sim.workloads.slo import References
from sim.workloads.trace import TraceRequest

USAGE = 2
TTFT_X, TPOT_X = 10.0, 2.5
"""The promises that requests ask for where no flag says otherwise."""


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
    recorded: Recorded | None = None

    @property
    def name(self) -> str:
        """The name of the workload, or the file of the recorded trace."""
        return self.workload if self.recorded is None else str(self.recorded.source)

    def trace(self, rate: float, seed: int) -> tuple[TraceRequest, ...]:
        """Return the recorded trace, or a drawn one."""
        if self.recorded is not None:
            return self.recorded.requests
        return draw(self.workload, self.process, rate, self.duration_s, seed, self.promises, self.scale)

    def capacity_per_s(self, fleet: FleetShape, placement: Placement) -> float:
        """Return the requests per second that a fleet carries at most, by arithmetic."""
        tpot_ms = self.promises.tpot_ms
        tpot_s = tpot_ms / 1000 if tpot_ms else None
        return capacity_per_s(self.profile, fleet, placement, self.lengths, tpot_s)


def add_load_flags(command: argparse.ArgumentParser, *, duration_s: float, has_traces: bool = False) -> None:
    """Add the flags for workload, arrivals and promises, and those for recorded traffic."""
    add_source_flags(command, has_traces=has_traces)
    load = command.add_argument_group("the load")
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
        "--ttft-x", type=POSITIVE, metavar="X",
        help=f"TTFT as a multiple of a median prompt without load ({TTFT_X:g})",
    )  # fmt: skip
    slo.add_argument(
        "--tpot-x", type=POSITIVE, metavar="X",
        help=f"TPOT as a multiple of a decode step of 32 sequences of 4096 tokens ({TPOT_X:g})",
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
    recorded = read_trace(args).fitting(profile.max_context) if args.trace is not None else None
    lengths = recorded.lengths if recorded is not None else tuple(sample(args.workload, args.scale))
    units = references(profile, lengths, args.scale)
    promises = Promises()
    if not args.no_slo:
        promises = Promises(
            args.ttft_ms or units.ttft_ms(args.ttft_x or TTFT_X),
            args.tpot_ms or units.tpot_ms(args.tpot_x or TPOT_X),
            args.itl_ms,
        )
    if recorded is not None and not (recorded.kind.has_promises and _leaves_promises(args)):
        recorded = recorded.asking(promises)
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
    )


def _leaves_promises(args: argparse.Namespace) -> bool:
    """Return True if no flag states a promise, so that requests keep the recorded ones."""
    given = (args.ttft_x, args.tpot_x, args.ttft_ms, args.tpot_ms, args.itl_ms)
    return not args.no_slo and all(value is None for value in given)
