"""Everything that is measured, one command each.

Exit codes: 0 measured, 1 a request failed or a goal is missed, 2 a wrong setting or file.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from baton.fleet import FleetError
from benchmarks.flags import FIVE_SEEDS, THREE_SEEDS, add_model_flag, add_shared_flags

EXIT_WRONG = 2


class Command(NamedTuple):
    """A command. Its module has `add_arguments(parser)` and `run(args)`, which returns the exit code; its
    docstring is the help.
    """

    module: str
    """Below `benchmarks`; imported only when it runs, since some load torch."""
    summary: str
    has_model: bool = True
    """False if no model is loaded or served, so that none can be chosen."""
    seeds: tuple[int, ...] = FIVE_SEEDS
    """Those that it measures with unless told others; empty for what measures nothing."""

    def load(self) -> Any:
        return importlib.import_module(f"benchmarks.{self.module}")


COMMANDS: dict[str, Command] = {
    "bench": Command(
        "fleets.bench", "a workload at a rate, under several policies side by side", seeds=THREE_SEEDS
    ),
    "plot": Command(
        "plot", "a page from the JSON of measurements and simulations", has_model=False, seeds=()
    ),
    "fidelity": Command("fleets.fidelity", "the simulator against a live fleet, request by request"),
    "gateway": Command(
        "fleets.gateway", "the cost of HTTP beside gRPC: first tokens and CPU time", seeds=THREE_SEEDS
    ),
    "peers": Command(
        "peers.command", "the router and the gateway beside Dynamo's frontend", seeds=THREE_SEEDS
    ),
    "router-cost": Command(
        "router_cost.command",
        "what a router adds to a first token, and where its processor time goes",
        seeds=THREE_SEEDS,
    ),
    "cpu": Command(
        "cpu.command",
        "a CPU: other engines, the limits of the machine, and where the time of a step goes",
        has_model=False,
    ),
    "strikes": Command(
        "peers.strikes", "what streams survive when a process dies, beside Dynamo", seeds=THREE_SEEDS
    ),
    "overload": Command(
        "peers.overload", "twice the load that a fleet carries, beside Dynamo", seeds=THREE_SEEDS
    ),
    "claims": Command("claims.command", "the claims about scheduling, in simulation", has_model=False),
    "rivals": Command(
        "rivals.command",
        "all policies beside one another, in simulation, on made and recorded traffic",
        has_model=False,
    ),
    "programs": Command(
        "programs",
        "agents in simulation: programs in time, by what calls state",
        has_model=False,
        seeds=THREE_SEEDS,
    ),
    "soak": Command(
        "crowds.soak", "what grows until a process stalls, at the size of real cards", seeds=THREE_SEEDS
    ),
    "burst": Command(
        "crowds.burst",
        "what becomes of ten thousand requests at once, and of a neighbour's",
        seeds=THREE_SEEDS,
    ),
    "start": Command(
        "start", "from a bare clone to the first streamed token", has_model=False, seeds=THREE_SEEDS
    ),
    "switching": Command("costs.switching", "how long a step waits for Python's lock", has_model=False),
    "step-error": Command("costs.step_error", "the error of the cost model"),
    "quantisation": Command("costs.quantisation", "the change of logits by 8 bits, and the gain in memory"),
    "decisions": Command("costs.decisions", "how long pure decisions take", has_model=False),
    "core-decisions": Command(
        "costs.core_decisions", "how long the router's core takes to decide", has_model=False
    ),
    "token-path": Command(
        "costs.token_path", "what each piece of code on a token's way takes", has_model=False
    ),
}


def main(argv: Sequence[str]) -> int:
    args = flags(argv[:1]).parse_args(argv)
    args.argv = list(argv[1:])
    try:
        code: int = COMMANDS[args.command].load().run(args)
    except (ValueError, OSError, FleetError) as error:
        print(f"{args.command}: {error}", file=sys.stderr)
        return EXIT_WRONG
    except KeyboardInterrupt:
        return 130
    return code


def flags(names: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser; only the commands in `names`, whose modules it imports, have their flags."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        if name not in names:
            commands.add_parser(name, help=command.summary, add_help=False)
            continue
        module = command.load()
        summary, _, details = (module.__doc__ or "").partition("\n\n")
        added = commands.add_parser(
            name,
            prog="baton bench" if name == "bench" else None,
            help=command.summary,
            description=summary,
            epilog=details,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(added)
        if command.has_model:
            add_model_flag(added)
        if command.seeds:
            add_shared_flags(added, command.seeds)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
