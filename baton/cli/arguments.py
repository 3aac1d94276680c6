"""The commands and their flags. A command's module is imported only when it is chosen."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from baton.async_client import DEFAULT_ADDRESS
from baton.cli.commands.checkout_command import SUMMARIES
from baton.cli.exits import EXIT_CODES_HELP, USAGE
from baton.cli.request_flags import add_sampling_flags, add_slo_flags, add_stop_flags
from baton.cli.values import address, count, decimal, named_json, seconds, unsigned
from baton.fleet.spec import PLACEMENTS, POLICIES, QUANTISATIONS, WITHOUT_REDIS
from baton.security.credentials import Credentials
from baton.types import SloClass


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line, without the usage of up to thirty flags."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    root = _Parser(
        prog="baton",
        description="Baton, a fleet that serves large language models over gRPC.",
        epilog=EXIT_CODES_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_up(commands.add_parser("up", help="start a fleet on this machine; Ctrl-C stops it"))
    _add_restart(commands.add_parser("restart", help="replace a running fleet's processes one after another"))
    _add_generate(commands.add_parser("generate", help="continue a prompt, streaming to stdout"))
    _add_quote(commands.add_parser("quote", help="the promise a prompt would get, without sending it"))
    _add_chat(commands.add_parser("chat", help="talk with the model"))
    _add_status(commands.add_parser("status", help="what the fleet is doing, live"))
    _add_health(commands.add_parser("health", help="ask a server, or the fleet, whether it serves"))
    _add_demo(commands.add_parser("demo", help="start a fleet, stream a few answers, stop it"))
    _add_key(commands.add_parser("key", help="make an API key of a tenant"))
    _add_certs(commands.add_parser("certs", help="make a fleet's own CA and certificates"))
    for name, summary in SUMMARIES.items():
        commands.add_parser(name, help=summary, add_help=False)
    return root


def _add_up(command: argparse.ArgumentParser) -> None:
    command.add_argument("--prefill", type=unsigned, default=1, metavar="N", help="prefill workers (1)")
    command.add_argument("--decode", type=unsigned, default=1, metavar="N", help="decode workers (1)")
    command.add_argument("--routers", type=unsigned, default=1, metavar="N", help="routers (1)")
    command.add_argument(
        "--port", type=unsigned, default=50051, metavar="N", help="first router's port; 0: any free (50051)"
    )
    command.add_argument(
        "--policy",
        choices=POLICIES,
        help="how the fleet serves: what a step consists of and which request goes first (slack)",
    )
    command.add_argument(
        "--placement",
        choices=PLACEMENTS,
        help="where prompts are computed (conditional for slack, disaggregated for the others)",
    )
    command.add_argument(
        "--without-redis",
        choices=WITHOUT_REDIS,
        help="while Redis is away, refuse new requests, or serve them from each router's own view (refuse)",
    )
    command.add_argument(
        "--deterministic", action="store_true", help="compute the same bits whoever shares a step; slower"
    )
    command.add_argument(
        "--quantisation",
        choices=QUANTISATIONS,
        help="what is kept in 8 bits; int8: weights of linear layers, kv8: keys and values, kvfp8: keys and "
        "values as fp8, which is less exact (none)",
    )
    command.add_argument(
        "--timed", metavar="PROFILE", help="compute nothing; steps take as long as this profile or file says"
    )
    command.add_argument(
        "--secure", action="store_true", help="use TLS, certificates, an API key and a Redis password"
    )
    command.add_argument(
        "--no-restart",
        action="store_true",
        help="do not restart what dies; the fleet ends with its last router or decode worker",
    )
    _add_fleet_flags(command)


def _add_restart(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--run-dir", type=Path, metavar="PATH", help="a fleet's folder (the newest fleet that runs)"
    )


def _add_certs(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "folder", type=Path, metavar="DIR", help="the folder to write; a CA that is there is kept"
    )
    command.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="where a router or Redis is reached; repeatable",
    )
    command.add_argument(
        "--days", type=count, default=365, metavar="N", help="days that the certificates are valid (365)"
    )


def _add_key(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "door_file", type=Path, metavar="FILE", help="the routers' --door file; it is made if missing"
    )
    command.add_argument("tenant", metavar="TENANT", help="the tenant that the key belongs to")
    command.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the new file that the key is written to"
    )
    command.add_argument(
        "--allow-class",
        action="append",
        default=[],
        choices=[str(slo_class) for slo_class in SloClass],
        help="a class the key may use; repeatable (all)",
    )
    command.add_argument("--operator", action="store_true", help="the key may also watch and drain the fleet")
    for what in ("requests", "tokens"):
        command.add_argument(
            f"--{what}-per-s", type=decimal, metavar="N", help=f"the tenant's {what} a second (no limit)"
        )
        command.add_argument(
            f"--{what[:-1]}-burst", type=decimal, metavar="N", help=f"{what} it may use at once"
        )


def _add_demo(command: argparse.ArgumentParser) -> None:
    _add_fleet_flags(command)
    command.add_argument(
        "--max-tokens", type=count, default=80, metavar="N", help="the length of each answer (80)"
    )


def _add_fleet_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model", type=Path, metavar="PATH", help="the folder of the checkpoint (the checkout's demo_model)"
    )
    command.add_argument("--redis", metavar="URL", help="use this Redis instead of starting one")
    command.add_argument(
        "--threads", type=unsigned, metavar="N", help="threads of each worker (cores / workers)"
    )
    command.add_argument(
        "--run-dir", type=Path, metavar="PATH", help="the folder for logs and state (.baton/runs/<n>)"
    )


def _add_generate(command: argparse.ArgumentParser) -> None:
    _add_prompt(command)
    command.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    command.add_argument(
        "--request-id", default="", metavar="ID", help="request id; sent twice, it runs once (a random one)"
    )
    command.add_argument("--timeout-s", type=seconds, metavar="S", help="give up after this time")
    _add_client_flags(command)
    _add_request_flags(command)


def _add_quote(command: argparse.ArgumentParser) -> None:
    _add_prompt(command)
    command.add_argument("--json", action="store_true", help="print the quote as JSON")
    _add_client_flags(command)
    _add_request_flags(command)


def _add_prompt(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", metavar="PROMPT", help="the text to continue; - reads it from stdin")
    command.add_argument("--chat", action="store_true", help="send the prompt as a user's message of a chat")
    command.add_argument(
        "--template-argument",
        type=named_json,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="a variable for the chat template, such as enable_thinking=false",
    )
    command.add_argument(
        "--truncate-prompt-tokens", type=unsigned, metavar="N", help="keep the last N tokens of the prompt"
    )


def _add_request_flags(command: argparse.ArgumentParser) -> None:
    add_sampling_flags(command)
    command.add_argument_group("sampling").add_argument(
        "--n", type=unsigned, metavar="N", help="the number of answers (1)"
    )
    add_stop_flags(command)
    add_slo_flags(command)


def _add_chat(command: argparse.ArgumentParser) -> None:
    command.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    _add_client_flags(command)
    add_sampling_flags(command)
    add_stop_flags(command)
    add_slo_flags(command)
    command.set_defaults(n=None)


def _add_status(command: argparse.ArgumentParser) -> None:
    command.add_argument("--once", action="store_true", help="print one snapshot and exit")
    command.add_argument("--json", action="store_true", help="print each snapshot as a line of JSON")
    command.add_argument(
        "--interval-s", type=seconds, default=0.5, metavar="S", help="time between snapshots (0.5)"
    )
    _add_client_flags(command)


def _add_health(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "address",
        type=address,
        nargs="?",
        metavar="HOST:PORT",
        help=f"a router or worker (the routers of the running fleet, else {DEFAULT_ADDRESS})",
    )
    command.add_argument(
        "--timeout-s", type=seconds, default=3.0, metavar="S", help="time to wait for the answer (3)"
    )
    group = command.add_argument_group("the fleet")
    _add_credentials_flags(group)
    _add_run_dir_flag(group)


def _add_client_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("the fleet")
    group.add_argument(
        "--address",
        type=address,
        action="append",
        metavar="HOST:PORT",
        help=f"a router; repeatable (the routers of the running fleet, else {DEFAULT_ADDRESS})",
    )
    _add_credentials_flags(group)
    _add_run_dir_flag(group)
    group.add_argument(
        "--tenant", default="", metavar="NAME", help="the tenant to act for (the credential's)"
    )
    group.add_argument("--model", default="", metavar="NAME", help="fail unless the fleet serves this model")
    group.add_argument(
        "--connect-s", type=seconds, default=2.0, metavar="S", help="time to wait for a connection (2)"
    )


def _add_credentials_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--ca", type=Path, metavar="FILE", help="the fleet's CA; turns TLS on")
    group.add_argument("--cert", type=Path, metavar="FILE", help="this client's certificate")
    group.add_argument("--key", type=Path, metavar="FILE", help="the key of that certificate")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="the API key, or a JWT")


def _add_run_dir_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--run-dir",
        type=Path,
        metavar="PATH",
        help="the folder of a running fleet, for its addresses and credentials (the newest that runs)",
    )


def credentials_of(args: argparse.Namespace) -> Credentials:
    return Credentials(args.ca, args.cert, args.key, args.api_key_file)
