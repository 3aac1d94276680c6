"""The commands and their flags. A command's module is imported only when it is chosen."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from baton.async_client import DEFAULT_ADDRESS
from baton.cli.exits import EXIT_CODES_HELP, USAGE
from baton.cli.flags import Flags, add_flags, choice, flag, several, switch
from baton.cli.request_flags import add_request_flags
from baton.cli.values import address, count, decimal, named_json, seconds, unsigned
from baton.fleet.checkout import find_checkout
from baton.fleet.hub_names import ACCEPTED, hub_name, is_model, model_path
from baton.fleet.spec import CHOICES, FleetSpec
from baton.types import SloClass
from baton.wire.fields import names_of

_number = partial(flag, "N", unsigned)
_megabytes = partial(flag, "MB", int)
_path = partial(flag, "PATH", Path)
_file = partial(flag, "FILE", Path)
_model = partial(flag, "MODEL", model_path)

_FLEET: Flags = {
    "--model": _model(
        "the folder of the checkpoint, a GGUF file, or a model of the hub: ORG/NAME or ORG/NAME@REVISION, "
        "and :FILE.gguf after it for one of its GGUF files (the checkout's demo_model)"
    ),
    "--redis": flag("URL", str, "use this Redis instead of starting one", dest="redis_url"),
    "--threads": _number("threads of each worker (cores of full speed / workers)"),
    "--run-dir": _path("the folder for logs and state (.baton/runs/<n>)"),
}
"""For commands that start a fleet. Most flags have the names of fields of `FleetSpec`."""
_MODELS: Flags = {
    "--model": several(
        "MODEL",
        model_path,
        f"{_FLEET['--model']['help']}; repeated, of a fleet for each model, with one gateway before all",
        dest="models",
    )
}
_UP: Flags = {
    "--prefill": _number("prefill workers (1)"),
    "--decode": _number("decode workers (1)"),
    "--routers": _number("routers (1)"),
    "--router-processes": _number("processes of each router, behind its one port, each with a core (1)"),
    "--port": _number("first router's port; 0: any free (50051)", default=50051, dest="router_port"),
    "--http-port": _number("port of the OpenAI and Anthropic APIs; 0: any free (8000)", default=8000),
    "--no-http": switch(
        "start no gateway: serve gRPC alone", action="store_const", const=0, default=1, dest="gateways"
    ),
    "--served-model-name": several(
        "NAME",
        str,
        "another name that requests may give the model, beside its own; repeatable (none)",
        dest="served_model_names",
    ),
    "--strict-fields": switch(
        "refuse HTTP requests with fields, tools or items that are not served, instead of leaving them out"
    ),
    "--policy": choice(
        CHOICES["policy"],
        "how the fleet serves: what a step consists of and which request goes first (slack)",
    ),
    "--placement": choice(
        CHOICES["placement"],
        "where prompts are computed (conditional for slack, disaggregated for the others)",
    ),
    "--without-redis": choice(
        CHOICES["without_redis"],
        "while Redis is away, refuse new requests, or serve them from each router's own view (refuse)",
    ),
    "--special-tokens-in-content": choice(
        CHOICES["special_tokens_in_content"],
        "control tokens that callers write into chats: read them as text, keep them as tokens, or refuse the "
        "request (text)",
    ),
    "--generation-config": choice(
        CHOICES["generation_config"],
        "how tokens are drawn where a request does not say: as the model's generation_config.json does, or "
        "by the defaults of the protocol (model)",
    ),
    "--deterministic": switch("compute the same bits whoever shares a step; slower"),
    "--prove-model": switch(
        "serve an architecture that is not on the list too, once each worker has shown that it computes what "
        "transformers does"
    ),
    "--quantisation": choice(
        CHOICES["quantisation"],
        "what is kept in 8 or 4 bits; int8, int4: weights of linear layers but the last, logits8: those of "
        "the last and the embedding, kv8: keys and values, kvfp8: keys and values as fp8, which is less "
        "exact (none)",
    ),
    "--speculate": choice(
        CHOICES["speculate"],
        "verify several drafted tokens in a step, with the same output; lookup: draft what followed the "
        "newest tokens earlier in the prompt or output (none; without a value: lookup)",
        nargs="?",
        const="lookup",
    ),
    "--draft-model": _model(
        "a smaller model of the same vocabulary: it drafts tokens, and decode workers verify several in a "
        "step, with the same output; where --speculate lookup finds some, these come first (none)"
    ),
    "--lora": several(
        "NAME=PATH",
        str,
        "serve a LoRA adapter under this name, from the folder that peft wrote; repeatable (none)",
    ),
    "--lora-dir": _path(
        "a folder with a folder for each LoRA adapter, which has its name: adapters are loaded when requests "
        "ask for them (none)"
    ),
    "--lora-memory-mb": _megabytes("memory for the adapters of --lora-dir in each worker (256)"),
    "--lora-rank": flag("R", int, "the largest rank of an adapter of --lora-dir (16)"),
    "--kv-host-memory-mb": _megabytes(
        "host memory of each worker for KV blocks that leave its KV memory: prompts that begin alike find "
        "them again (0)"
    ),
    "--kv-disk": _path(
        "a folder for KV blocks that leave the workers' memory: prompts that begin alike find them again, "
        "also after a restart (none)"
    ),
    "--kv-disk-mb": _megabytes("most that --kv-disk holds for each worker (4096)"),
    "--share-prefixes": switch(
        "let workers fetch the KV of a prompt's beginning from each other where that is faster than "
        "computing it"
    ),
    "--tensor-parallel": _number(
        "processes of each worker that compute its steps, or those of each stage, together, each with a part "
        "of every layer; on a CPU (1)"
    ),
    "--pipeline-parallel": _number(
        "stages of each worker that compute its steps in turn, each with some of the layers, in the "
        "processes of --tensor-parallel; on a CPU (1)"
    ),
    "--timed": flag("PROFILE", str, "compute nothing; steps take as long as this profile or file says"),
    "--secure": switch("use TLS, certificates, an API key and a Redis password"),
    "--no-restart": switch("do not restart what dies; the fleet ends with its last router or decode worker"),
}
_OF_ONE_FLEET = ("redis_url", "served_model_names", "lora", "lora_dir", "draft_model")
"""Fields of `FleetSpec` that several fleets cannot share."""
_CERTS: Flags = {
    "folder": flag("DIR", Path, "the folder to write; a CA that is there is kept"),
    "--host": several("NAME", str, "where a router or Redis is reached; repeatable"),
    "--days": flag("N", count, "days that the certificates are valid (365)", default=365),
    "--secrets": flag(
        "PREFIX",
        str,
        "in a pod: keep them in Secrets of its namespace, such as PREFIX-router, and renew them once two "
        "thirds of their days have passed",
    ),
}
_KEY: Flags = {
    "door_file": _file("the routers' --door file; it is made if missing"),
    "tenant": flag("TENANT", str, "the tenant that the key belongs to"),
    "--out": _file("the new file that the key is written to", required=True),
    "--allow-class": choice(
        tuple(map(str, SloClass)), "a class the key may use; repeatable (all)", action="append", default=[]
    ),
    "--operator": switch("the key may also watch and drain the fleet"),
    "--delegate": switch("the key may act for any tenant: a gateway's, for batches"),
    "--requests-per-s": flag("N", decimal, "the tenant's requests a second (no limit)"),
    "--request-burst": flag("N", decimal, "requests it may use at once"),
    "--tokens-per-s": flag("N", decimal, "the tenant's tokens a second (no limit)"),
    "--token-burst": flag("N", decimal, "tokens it may use at once"),
}
_TEMPLATE: Flags = {
    "--template-argument": several(
        "NAME=JSON", named_json, "a variable for the chat template, such as enable_thinking=false"
    )
}
_PROMPT: Flags = {
    "prompt": flag("PROMPT", str, "the text to continue; - reads it from stdin"),
    "--chat": switch("send the prompt as a user's message of a chat, as with --tools"),
    **_TEMPLATE,
    "--truncate-prompt-tokens": _number("keep the last N tokens of the prompt"),
    "--n": _number("the number of answers (1)"),
}
_GENERATE: Flags = {
    **_PROMPT,
    "--json": switch("print each event as a line of JSON"),
    "--request-id": flag("ID", str, "request id; sent twice, it runs once (a random one)", default=""),
    "--timeout-s": flag("S", seconds, "give up after this time"),
}
_STATUS: Flags = {
    "--once": switch("print one snapshot and exit"),
    "--json": switch("print each snapshot as a line of JSON"),
    "--interval-s": flag("S", seconds, "time between snapshots (0.5)", default=0.5),
}
_HEALTH: Flags = {
    "address": flag(
        "HOST:PORT",
        address,
        f"a router or worker (the routers of the running fleet, else {DEFAULT_ADDRESS})",
        nargs="?",
    ),
    "--timeout-s": flag("S", seconds, "time to wait for the answer (3)", default=3.0),
}
_RUN_DIR: Flags = {"--run-dir": _path("the folder of a running fleet (that of the newest)")}
_FINDS: Flags = {
    "--ca": _file("the fleet's CA; turns TLS on"),
    "--cert": _file("this client's certificate"),
    "--key": _file("the key of that certificate"),
    "--api-key-file": _file("the API key, or a JWT"),
    **_RUN_DIR,
}
_CALLS: Flags = {
    **_FINDS,
    "--address": several(
        "HOST:PORT",
        address,
        f"a router; repeatable (the routers of the running fleet, else {DEFAULT_ADDRESS})",
    ),
    "--context": flag("NAME", str, "the fleet in a cluster, by this context of kubectl's"),
    "--namespace": flag("NAME", str, "the fleet's namespace in the cluster (the context's)"),
    "--tenant": flag("NAME", str, "the tenant to act for (the credential's)", default=""),
    "--model": flag("NAME", str, "fail unless the fleet serves this model", default=""),
    "--connect-s": flag("S", seconds, "time to wait for a connection (2)", default=2.0),
}


class _Command(NamedTuple):
    summary: str
    flags: Flags
    of_fleet: Flags | None = None
    """By which a running fleet is found and called."""
    is_request: bool = False


_COMMANDS = {
    "up": _Command("start a fleet on this machine; Ctrl-C stops it", {**_UP, **_FLEET, **_MODELS}),
    "restart": _Command("replace a running fleet's services one after another", _RUN_DIR),
    "generate": _Command("continue a prompt, streaming to stdout", _GENERATE, _CALLS, is_request=True),
    "quote": _Command(
        "the promise a prompt would get, without sending it",
        {**_PROMPT, "--json": switch("print the quote as JSON")},
        _CALLS,
        is_request=True,
    ),
    "chat": _Command(
        "talk with the model",
        {"--system": flag("TEXT", str, "a system message to begin with"), **_TEMPLATE},
        _CALLS,
        is_request=True,
    ),
    "status": _Command("what the fleet is doing, live", _STATUS, _CALLS),
    "health": _Command("ask a server, or the fleet, whether it serves", _HEALTH, _FINDS),
    "demo": _Command(
        "start a fleet, stream a few answers, stop it",
        {**_FLEET, "--max-tokens": flag("N", count, "the length of each answer (80)", default=80)},
    ),
    "key": _Command("make an API key of a tenant", _KEY),
    "certs": _Command("make a fleet's own CA and certificates", _CERTS),
}


PACKAGES = {"simulate": "sim", "plan": "sim", "bench": "benchmarks"}
"""The commands that run from a checkout."""
_SUMMARIES = {
    "simulate": "play a workload against a fleet on a simulated clock",
    "plan": "search the cheapest fleet that keeps a promise",
    "bench": "put load on a fleet and measure what its clients see",
}


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
    for name, (summary, flags, of_fleet, is_request) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        add_flags(command, flags)
        if of_fleet:
            add_flags(command.add_argument_group("the fleet"), of_fleet)
        if is_request:
            add_request_flags(command)
    for name, summary in _SUMMARIES.items():
        commands.add_parser(name, help=summary, add_help=False)
    return root


def specs_of(args: argparse.Namespace) -> list[FleetSpec]:
    """Return a fleet for each model of `baton up`; the first one has the gateway.

    Raises `ValueError` for what only one fleet can have.
    """
    if len(args.models) < 2:
        return [spec_of(args, *args.models)]
    for name in _OF_ONE_FLEET:
        if getattr(args, name):
            raise ValueError(f"{name} is set with {len(args.models)} models: it must be left out")
    return [_one_of_several(args, place, model) for place, model in enumerate(args.models)]


def _one_of_several(args: argparse.Namespace, place: int, model: Path) -> FleetSpec:
    """Return one of several fleets, with ports, folders and a share of the machine of its own."""
    spec, number = spec_of(args, model), len(args.models)
    share = ("--workers-per-host", str(number * spec.num_workers))
    return dataclasses.replace(
        spec,
        gateways=0 if place else spec.gateways,
        router_port=spec.router_port and spec.router_port + place * spec.routers,
        run_dir=spec.run_dir and spec.run_dir / str(number - place),  # the first one starts last
        kv_disk=spec.kv_disk and spec.kv_disk / model.name,
        extra_args={"prefill": share, "decode": share},
    )


def spec_of(args: argparse.Namespace, model: Path | None = None) -> FleetSpec:
    """Return the fleet that the arguments describe. Raises `ValueError` for a model folder that is none."""
    fields = names_of(FleetSpec)
    described = {name: value for name, value in vars(args).items() if name in fields and value is not None}
    described["model"] = model = model or find_checkout() / "demo_model"
    if hub_name(model) is None and not is_model(model):
        raise ValueError(f"--model is {model}: it must be {ACCEPTED}")
    # The secrets are kept from run to run, so that clients' files stay valid.
    folder = (args.run_dir or find_checkout() / ".baton").resolve() / "secure"
    described["secure"] = folder if described.get("secure") else None
    return FleetSpec(**described)
