"""What can be typed; the commands themselves are imported only when one is chosen."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from baton.async_client import DEFAULT_ADDRESS
from baton.cli.commands.checkout_command import SUMMARIES
from baton.cli.exits import EXIT_CODES_HELP, USAGE
from baton.cli.values import address, bias, count, decimal, named_json, seconds, unsigned
from baton.fleet.spec import PLACEMENTS, POLICIES, QUANTISATIONS, WITHOUT_REDIS
from baton.security.credentials import Credentials
from baton.types import Sampling, Slo, SloClass, Stop


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; the usage of a command with thirty flags would bury it."""

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


def sampling_of(args: argparse.Namespace) -> Sampling:
    return Sampling(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=dict(args.logit_bias),
        seed=args.seed,
        n=args.n,
        logprobs=args.logprobs,
        prompt_logprobs=args.prompt_logprobs,
        allowed_token_ids=tuple(args.allowed_token_id),
        bad_words=tuple(args.bad_word),
    )


def stop_of(args: argparse.Namespace) -> Stop:
    return Stop(
        max_tokens=args.max_tokens,
        min_tokens=args.min_tokens,
        strings=tuple(args.stop),
        token_ids=tuple(args.stop_token_id),
        ignore_eos=args.ignore_eos,
        include_stop=args.include_stop,
        skip_special_tokens=False if args.show_special_tokens else None,
    )


def slo_of(args: argparse.Namespace) -> Slo:
    return Slo(
        ttft_ms=args.ttft_ms,
        tpot_ms=args.tpot_ms,
        itl_ms=args.itl_ms,
        deadline_ms=args.deadline_ms,
        slo_class=SloClass(args.slo_class),
        allow_at_risk=args.allow_at_risk,
    )


def _add_up(command: argparse.ArgumentParser) -> None:
    command.add_argument("--prefill", type=unsigned, default=1, metavar="N", help="prefill workers (1)")
    command.add_argument("--decode", type=unsigned, default=1, metavar="N", help="decode workers (1)")
    command.add_argument("--routers", type=unsigned, default=1, metavar="N", help="routers (1)")
    command.add_argument(
        "--port", type=unsigned, default=50051, help="of the first router; 0: a free one (50051)"
    )
    command.add_argument("--policy", choices=POLICIES, help="what steps are made of, and who goes first")
    command.add_argument(
        "--placement",
        choices=PLACEMENTS,
        help="where prompts are computed (slack: conditional, others: disaggregated)",
    )
    command.add_argument(
        "--without-redis",
        choices=WITHOUT_REDIS,
        help="newcomers while Redis is away: refused (the default), or served by what each router knows",
    )
    command.add_argument(
        "--deterministic", action="store_true", help="the same bits whoever shares a step, somewhat slower"
    )
    command.add_argument(
        "--quantisation",
        choices=QUANTISATIONS,
        help="what is kept in 8 bits: int8, linear layers' weights; kv8, keys and values, or kvfp8, the same "
        "as fp8, which is less exact",
    )
    command.add_argument(
        "--timed", metavar="PROFILE", help="compute nothing: steps last what this profile, or file, says"
    )
    command.add_argument(
        "--secure", action="store_true", help="with TLS, certificates, an API key and a Redis password"
    )
    command.add_argument(
        "--no-restart",
        action="store_true",
        help="leave what dies dead: the fleet ends with its last router or decode worker",
    )
    _add_fleet_flags(command)


def _add_restart(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--run-dir", type=Path, metavar="PATH", help="of the fleet (the newest of .baton/runs that runs)"
    )


def _add_certs(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", type=Path, metavar="DIR", help="a CA that is in it already is kept")
    command.add_argument(
        "--host", action="append", default=[], metavar="NAME", help="or address, of a router or Redis"
    )
    command.add_argument("--days", type=count, default=365, metavar="N", help="of validity (365)")


def _add_key(command: argparse.ArgumentParser) -> None:
    command.add_argument("door_file", type=Path, metavar="FILE", help="the routers' --door; made if needed")
    command.add_argument("tenant", metavar="TENANT", help="whose key it is")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="for the key itself")
    command.add_argument(
        "--allow-class",
        action="append",
        default=[],
        choices=[str(slo_class) for slo_class in SloClass],
        help="say it again for each further one (all)",
    )
    command.add_argument("--operator", action="store_true", help="may also watch and drain the fleet")
    for what in ("requests", "tokens"):
        command.add_argument(f"--{what}-per-s", type=decimal, metavar="N", help=f"the tenant's {what}")
        command.add_argument(f"--{what[:-1]}-burst", type=decimal, metavar="N", help="at once")


def _add_demo(command: argparse.ArgumentParser) -> None:
    _add_fleet_flags(command)
    command.add_argument("--max-tokens", type=count, default=80, metavar="N", help="of each answer (80)")


def _add_fleet_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--model", type=Path, metavar="PATH", help="model folder (the checkout's demo_model)"
    )
    command.add_argument("--redis", metavar="URL", help="use this server instead of starting one")
    command.add_argument("--threads", type=unsigned, metavar="N", help="of each worker (cores / workers)")
    command.add_argument("--run-dir", type=Path, metavar="PATH", help="for the logs (.baton/runs/<n>)")


def _add_generate(command: argparse.ArgumentParser) -> None:
    _add_prompt(command)
    command.add_argument("--json", action="store_true", help="one event per line, as JSON")
    command.add_argument("--request-id", default="", metavar="ID", help="sent twice, it runs once")
    command.add_argument("--timeout-s", type=seconds, metavar="S", help="give up after so long")
    _add_client_flags(command)
    _add_request_flags(command)


def _add_quote(command: argparse.ArgumentParser) -> None:
    _add_prompt(command)
    command.add_argument("--json", action="store_true", help="the quote as JSON")
    _add_client_flags(command)
    _add_request_flags(command)


def _add_prompt(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", metavar="PROMPT", help="the text to continue; - reads it from stdin")
    command.add_argument("--chat", action="store_true", help="ask it as a user's message of a chat")
    command.add_argument(
        "--template-argument",
        type=named_json,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="a variable for the chat template, such as enable_thinking=false",
    )
    command.add_argument(
        "--truncate-prompt-tokens", type=unsigned, metavar="N", help="use the prompt's last N tokens"
    )


def _add_request_flags(command: argparse.ArgumentParser) -> None:
    _add_sampling_flags(command)
    command.add_argument_group("sampling").add_argument(
        "--n", type=unsigned, metavar="N", help="how many answers"
    )
    _add_stop_flags(command)
    _add_slo_flags(command)


def _add_chat(command: argparse.ArgumentParser) -> None:
    command.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    _add_client_flags(command)
    _add_sampling_flags(command)
    _add_stop_flags(command)
    _add_slo_flags(command)
    command.set_defaults(n=None)


def _add_status(command: argparse.ArgumentParser) -> None:
    command.add_argument("--once", action="store_true", help="print one snapshot and leave")
    command.add_argument("--json", action="store_true", help="snapshots as JSON, one per line")
    command.add_argument(
        "--interval-s", type=seconds, default=0.5, metavar="S", help="between snapshots (0.5)"
    )
    _add_client_flags(command)


def _add_health(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "address",
        type=address,
        nargs="?",
        metavar="HOST:PORT",
        help=f"a router's or a worker's (the routers of the running fleet, else {DEFAULT_ADDRESS})",
    )
    command.add_argument("--timeout-s", type=seconds, default=3.0, metavar="S", help="for the answer (3)")
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
        help=f"a router; say it again for each further one (of the running fleet, else {DEFAULT_ADDRESS})",
    )
    _add_credentials_flags(group)
    _add_run_dir_flag(group)
    group.add_argument("--tenant", default="", help="on whose account")
    group.add_argument("--model", default="", metavar="NAME", help="insist on this model")
    group.add_argument("--connect-s", type=seconds, default=2.0, metavar="S", help="patience to connect (2)")


def _add_credentials_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--ca", type=Path, metavar="FILE", help="the fleet's CA; turns TLS on")
    group.add_argument("--cert", type=Path, metavar="FILE", help="this client's certificate")
    group.add_argument("--key", type=Path, metavar="FILE", help="its key")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="the API key, or a JWT")


def _add_run_dir_flag(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--run-dir",
        type=Path,
        metavar="PATH",
        help="of a running fleet, for its addresses and credentials (the newest of .baton/runs that runs)",
    )


def credentials_of(args: argparse.Namespace) -> Credentials:
    return Credentials(args.ca, args.cert, args.key, args.api_key_file)


def _add_sampling_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("sampling")
    group.add_argument("--temperature", type=decimal, metavar="T", help="0 is greedy")
    group.add_argument("--top-k", type=unsigned, metavar="K", help="keep the K most likely tokens")
    group.add_argument("--top-p", type=decimal, metavar="P", help="keep the smallest set of probability P")
    group.add_argument("--min-p", type=decimal, metavar="P", help="drop below P times the most likely")
    group.add_argument(
        "--repetition-penalty", type=decimal, metavar="X", help="over tokens of prompt and answer"
    )
    group.add_argument("--presence-penalty", type=decimal, metavar="X", help="once per token of the answer")
    group.add_argument("--frequency-penalty", type=decimal, metavar="X", help="per occurrence in the answer")
    group.add_argument(
        "--logit-bias", type=bias, action="append", default=[], metavar="ID=X", help="add X to one token's"
    )
    group.add_argument(
        "--allowed-token-id", type=unsigned, action="append", default=[], metavar="ID", help="draw no other"
    )
    group.add_argument(
        "--bad-word", action="append", default=[], metavar="TEXT", help="do not complete this word"
    )
    group.add_argument("--seed", type=unsigned, metavar="N", help="the same seed draws the same answer")
    group.add_argument(
        "--logprobs", type=unsigned, metavar="N", help="tell each token's, and N alternatives'"
    )
    group.add_argument(
        "--prompt-logprobs", type=unsigned, metavar="N", help="the same of the prompt (shown with --json)"
    )


def _add_stop_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("stopping")
    group.add_argument("--max-tokens", type=unsigned, metavar="N", help="at most so many")
    group.add_argument("--min-tokens", type=unsigned, default=0, metavar="N", help="at least so many")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text")
    group.add_argument(
        "--stop-token-id", type=unsigned, action="append", default=[], metavar="ID", help="end with it"
    )
    group.add_argument("--ignore-eos", action="store_true", help="go on over the model's end")
    group.add_argument("--include-stop", action="store_true", help="show what ended the text")
    group.add_argument("--show-special-tokens", action="store_true", help="such as the model's end")


def _add_slo_flags(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("promise asked for")
    group.add_argument("--ttft-ms", type=unsigned, metavar="MS", help="to the first token")
    group.add_argument("--tpot-ms", type=unsigned, metavar="MS", help="between tokens after it, on average")
    group.add_argument("--itl-ms", type=unsigned, metavar="MS", help="between any two tokens after it")
    group.add_argument("--deadline-ms", type=unsigned, metavar="MS", help="cut off what is not done by then")
    group.add_argument(
        "--class",
        dest="slo_class",
        choices=[str(slo_class) for slo_class in SloClass],
        default=str(SloClass.STANDARD),
        help="who goes first (standard)",
    )
    group.add_argument("--allow-at-risk", action="store_true", help="rather late than refused")
