"""The commands and their flags. A command's module is imported only when it is chosen."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from baton.async_client import DEFAULT_ADDRESS
from baton.cli.checkout_command import SUMMARIES
from baton.cli.exits import EXIT_CODES_HELP, USAGE
from baton.cli.request_flags import add_request_flags
from baton.cli.values import address, count, decimal, named_json, seconds, unsigned
from baton.fleet.checkout import find_checkout
from baton.fleet.hub_names import ACCEPTED, hub_name, is_model, model_path
from baton.fleet.spec import (
    GENERATION_CONFIGS,
    PLACEMENTS,
    POLICIES,
    QUANTISATIONS,
    SPECIAL_TOKENS_IN_CONTENT,
    SPECULATIONS,
    WITHOUT_REDIS,
    FleetSpec,
)
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
    for name, (summary, add_flags) in _COMMANDS.items():
        add_flags(commands.add_parser(name, help=summary))
    for name, summary in SUMMARIES.items():
        commands.add_parser(name, help=summary, add_help=False)
    return root


def _add_up(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--prefill", type=unsigned, default=1, metavar="N", help="prefill workers (1)")
    add("--decode", type=unsigned, default=1, metavar="N", help="decode workers (1)")
    add("--routers", type=unsigned, default=1, metavar="N", help="routers (1)")
    add(
        "--router-processes",
        type=unsigned,
        default=1,
        metavar="N",
        help="processes of each router, behind its one port, each with a core (1)",
    )
    add(
        "--port",
        dest="router_port",
        type=unsigned,
        default=50051,
        metavar="N",
        help="first router's port; 0: any free (50051)",
    )
    add(
        "--http-port",
        type=unsigned,
        default=8000,
        metavar="N",
        help="port of the OpenAI and Anthropic APIs; 0: any free (8000)",
    )
    add(
        "--no-http",
        dest="gateways",
        action="store_const",
        const=0,
        default=1,
        help="start no gateway: serve gRPC alone",
    )
    add(
        "--served-model-name",
        dest="served_model_names",
        action="append",
        default=[],
        metavar="NAME",
        help="another name that HTTP callers may give the model, beside its own; repeatable (none)",
    )
    add(
        "--strict-fields",
        action="store_true",
        help="refuse HTTP requests with fields, tools or items that are not served, instead of leaving them "
        "out",
    )
    add(
        "--policy",
        choices=POLICIES,
        help="how the fleet serves: what a step consists of and which request goes first (slack)",
    )
    add(
        "--placement",
        choices=PLACEMENTS,
        help="where prompts are computed (conditional for slack, disaggregated for the others)",
    )
    add(
        "--without-redis",
        choices=WITHOUT_REDIS,
        help="while Redis is away, refuse new requests, or serve them from each router's own view (refuse)",
    )
    add(
        "--special-tokens-in-content",
        choices=SPECIAL_TOKENS_IN_CONTENT,
        help="control tokens that callers write into chats: read them as text, keep them as tokens, or "
        "refuse the request (text)",
    )
    add(
        "--generation-config",
        choices=GENERATION_CONFIGS,
        help="how tokens are drawn where a request does not say: as the model's generation_config.json does, "
        "or by the defaults of the protocol (model)",
    )
    add("--deterministic", action="store_true", help="compute the same bits whoever shares a step; slower")
    add(
        "--prove-model",
        action="store_true",
        help="serve an architecture that is not on the list too, once each worker has shown that it computes "
        "what transformers does",
    )
    add(
        "--quantisation",
        choices=QUANTISATIONS,
        help="what is kept in 8 or 4 bits; int8, int4: weights of linear layers but the last, logits8: those "
        "of the last and the embedding, kv8: keys and values, kvfp8: keys and values as fp8, which is less "
        "exact (none)",
    )
    add(
        "--speculate",
        nargs="?",
        const="lookup",
        choices=SPECULATIONS,
        help="verify several drafted tokens in a step, with the same output; lookup: draft what followed the "
        "newest tokens earlier in the prompt or output (none; without a value: lookup)",
    )
    add(
        "--draft-model",
        type=model_path,
        metavar="MODEL",
        help="a smaller model of the same vocabulary: it drafts tokens, and decode workers verify several in "
        "a step, with the same output; where --speculate lookup finds some, these come first (none)",
    )
    add(
        "--lora",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="serve a LoRA adapter under this name, from the folder that peft wrote; repeatable (none)",
    )
    add(
        "--lora-dir",
        type=Path,
        metavar="PATH",
        help="a folder with a folder for each LoRA adapter, which has its name: adapters are loaded when "
        "requests ask for them (none)",
    )
    add(
        "--lora-memory-mb",
        type=int,
        metavar="MB",
        help="memory for the adapters of --lora-dir in each worker (256)",
    )
    add("--lora-rank", type=int, metavar="R", help="the largest rank of an adapter of --lora-dir (16)")
    add(
        "--kv-host-memory-mb",
        type=int,
        metavar="MB",
        help="host memory of each worker for KV blocks that leave its KV memory: prompts that begin alike "
        "find them again (0)",
    )
    add(
        "--kv-disk",
        type=Path,
        metavar="PATH",
        help="a folder for KV blocks that leave the workers' memory: prompts that begin alike find them "
        "again, also after a restart (none)",
    )
    add("--kv-disk-mb", type=int, metavar="MB", help="most that --kv-disk holds for each worker (4096)")
    add(
        "--share-prefixes",
        action="store_true",
        help="let workers fetch the KV of a prompt's beginning from each other where that is faster than "
        "computing it",
    )
    add(
        "--tensor-parallel",
        type=int,
        default=1,
        metavar="N",
        help="processes of each worker that compute its steps, or those of each stage, together, each with a "
        "part of every layer; on a CPU (1)",
    )
    add(
        "--pipeline-parallel",
        type=int,
        default=1,
        metavar="N",
        help="stages of each worker that compute its steps in turn, each with some of the layers, in the "
        "processes of --tensor-parallel; on a CPU (1)",
    )
    add("--timed", metavar="PROFILE", help="compute nothing; steps take as long as this profile or file says")
    add("--secure", action="store_true", help="use TLS, certificates, an API key and a Redis password")
    add(
        "--no-restart",
        action="store_true",
        help="do not restart what dies; the fleet ends with its last router or decode worker",
    )
    _add_fleet_flags(command)


def _add_certs(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("folder", type=Path, metavar="DIR", help="the folder to write; a CA that is there is kept")
    add(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="where a router or Redis is reached; repeatable",
    )
    add("--days", type=count, default=365, metavar="N", help="days that the certificates are valid (365)")
    add(
        "--secrets",
        metavar="PREFIX",
        help="in a pod: keep them in Secrets of its namespace, such as PREFIX-router, and renew them once "
        "two thirds of their days have passed",
    )


def _add_key(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("door_file", type=Path, metavar="FILE", help="the routers' --door file; it is made if missing")
    add("tenant", metavar="TENANT", help="the tenant that the key belongs to")
    add("--out", type=Path, required=True, metavar="FILE", help="the new file that the key is written to")
    add(
        "--allow-class",
        action="append",
        default=[],
        choices=[str(slo_class) for slo_class in SloClass],
        help="a class the key may use; repeatable (all)",
    )
    add("--operator", action="store_true", help="the key may also watch and drain the fleet")
    add("--delegate", action="store_true", help="the key may act for any tenant: a gateway's, for batches")
    for what in ("requests", "tokens"):
        add(f"--{what}-per-s", type=decimal, metavar="N", help=f"the tenant's {what} a second (no limit)")
        add(f"--{what[:-1]}-burst", type=decimal, metavar="N", help=f"{what} it may use at once")


def _add_demo(command: argparse.ArgumentParser) -> None:
    _add_fleet_flags(command)
    command.add_argument(
        "--max-tokens", type=count, default=80, metavar="N", help="the length of each answer (80)"
    )


def _add_fleet_flags(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--model",
        type=model_path,
        metavar="MODEL",
        help="the folder of the checkpoint, a GGUF file, or a model of the hub: ORG/NAME or "
        "ORG/NAME@REVISION, and :FILE.gguf after it for one of its GGUF files (the checkout's demo_model)",
    )
    add("--redis", dest="redis_url", metavar="URL", help="use this Redis instead of starting one")
    add(
        "--threads", type=unsigned, metavar="N", help="threads of each worker (cores of full speed / workers)"
    )
    add("--run-dir", type=Path, metavar="PATH", help="the folder for logs and state (.baton/runs/<n>)")


def _add_generate(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    _add_prompt(command)
    add("--json", action="store_true", help="print each event as a line of JSON")
    add("--request-id", default="", metavar="ID", help="request id; sent twice, it runs once (a random one)")
    add("--timeout-s", type=seconds, metavar="S", help="give up after this time")


def _add_quote(command: argparse.ArgumentParser) -> None:
    _add_prompt(command)
    command.add_argument("--json", action="store_true", help="print the quote as JSON")


def _add_prompt(command: argparse.ArgumentParser) -> None:
    """Add the prompt, and all flags that a request with a prompt has."""
    add = command.add_argument
    add("prompt", metavar="PROMPT", help="the text to continue; - reads it from stdin")
    add("--chat", action="store_true", help="send the prompt as a user's message of a chat, as with --tools")
    _add_template_argument(command)
    add("--truncate-prompt-tokens", type=unsigned, metavar="N", help="keep the last N tokens of the prompt")
    add("--n", type=unsigned, metavar="N", help="the number of answers (1)")
    _add_client_flags(command)
    add_request_flags(command)


def _add_chat(command: argparse.ArgumentParser) -> None:
    command.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    _add_template_argument(command)
    _add_client_flags(command)
    add_request_flags(command)
    command.set_defaults(n=None)


def _add_template_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--template-argument",
        type=named_json,
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="a variable for the chat template, such as enable_thinking=false",
    )


def _add_status(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--once", action="store_true", help="print one snapshot and exit")
    add("--json", action="store_true", help="print each snapshot as a line of JSON")
    add("--interval-s", type=seconds, default=0.5, metavar="S", help="time between snapshots (0.5)")
    _add_client_flags(command)


def _add_health(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "address",
        type=address,
        nargs="?",
        metavar="HOST:PORT",
        help=f"a router or worker (the routers of the running fleet, else {DEFAULT_ADDRESS})",
    )
    add("--timeout-s", type=seconds, default=3.0, metavar="S", help="time to wait for the answer (3)")
    _add_fleet_group(command)


def _add_client_flags(command: argparse.ArgumentParser) -> None:
    add = _add_fleet_group(command).add_argument
    add(
        "--address",
        type=address,
        action="append",
        metavar="HOST:PORT",
        help=f"a router; repeatable (the routers of the running fleet, else {DEFAULT_ADDRESS})",
    )
    add("--context", metavar="NAME", help="the fleet in a cluster, by this context of kubectl's")
    add("--namespace", metavar="NAME", help="the fleet's namespace in the cluster (the context's)")
    add("--tenant", default="", metavar="NAME", help="the tenant to act for (the credential's)")
    add("--model", default="", metavar="NAME", help="fail unless the fleet serves this model")
    add("--connect-s", type=seconds, default=2.0, metavar="S", help="time to wait for a connection (2)")


def _add_fleet_group(command: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the flags by which a running fleet is found."""
    group = command.add_argument_group("the fleet")
    add = group.add_argument
    add("--ca", type=Path, metavar="FILE", help="the fleet's CA; turns TLS on")
    add("--cert", type=Path, metavar="FILE", help="this client's certificate")
    add("--key", type=Path, metavar="FILE", help="the key of that certificate")
    add("--api-key-file", type=Path, metavar="FILE", help="the API key, or a JWT")
    _add_run_dir_flag(group)
    return group


def _add_run_dir_flag(to: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    what = "the folder of a running fleet (that of the newest)"
    to.add_argument("--run-dir", type=Path, metavar="PATH", help=what)


def credentials_of(args: argparse.Namespace) -> Credentials:
    return Credentials(args.ca, args.cert, args.key, args.api_key_file)


def spec_of(args: argparse.Namespace) -> FleetSpec:
    """Return the fleet that the arguments describe. Raises `ValueError` for a model folder that is none."""
    names = {field.name for field in dataclasses.fields(FleetSpec)}
    described = {name: value for name, value in vars(args).items() if name in names}
    described["model"] = model = args.model or find_checkout() / "demo_model"
    if hub_name(model) is None and not is_model(model):
        raise ValueError(f"--model is {model}: it must be {ACCEPTED}")
    # The secrets are kept from run to run, so that clients' files stay valid.
    folder = (args.run_dir or find_checkout() / ".baton").resolve() / "secure"
    described["secure"] = folder if described.get("secure") else None
    return FleetSpec(**described)


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "up": ("start a fleet on this machine; Ctrl-C stops it", _add_up),
    "restart": ("replace a running fleet's services one after another", _add_run_dir_flag),
    "generate": ("continue a prompt, streaming to stdout", _add_generate),
    "quote": ("the promise a prompt would get, without sending it", _add_quote),
    "chat": ("talk with the model", _add_chat),
    "status": ("what the fleet is doing, live", _add_status),
    "health": ("ask a server, or the fleet, whether it serves", _add_health),
    "demo": ("start a fleet, stream a few answers, stop it", _add_demo),
    "key": ("make an API key of a tenant", _add_key),
    "certs": ("make a fleet's own CA and certificates", _add_certs),
}
"""The help and the flags of each command."""
