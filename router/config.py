"""The router's settings: read from flags, checked once, frozen."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from model_output.formats import REASONING_FORMATS, TOOL_FORMATS, ChatFormats
from router.limits import (
    Limits,
    add_limit_flags,
    limits_of,
)
from router.request import InContent
from runtime.profiles import load_timed, names
from runtime.settings import (
    MAX_PORT,
    ServiceSettings,
    add_service_flags,
    check_least,
    own_name,
    settings_of,
)
from scheduling import policies
from scheduling.admission.shares import TenantWeights
from scheduling.cost.profiles import Profile
from scheduling.placement import Placement
from scheduling.policies.policy import Policy

NO_FORMAT = "none"
WITHOUT_REDIS = ("refuse", "local")
GENERATION_CONFIGS = ("model", "none")
MAX_MODEL_NAME = 256


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Validated settings; raises `ValueError` naming the flag and what it accepts."""

    service: ServiceSettings
    router_id: str
    policy: Policy
    placement: Placement
    timed: Profile | None
    """The workers' profile, whose context is longer than the model's own."""
    tool_format: str | None
    """How the model writes tool calls; None: as its chat template shows."""
    reasoning_format: str | None
    """How the model writes reasoning; None: as its chat template shows."""
    special_tokens_in_content: InContent
    """Meaning of control tokens that callers write into chats."""
    generation_config: str
    served_model_names: tuple[str, ...]
    """Names of the model beside its own."""
    weights: TenantWeights
    without_redis: str
    queue_capacity: int
    processes: int
    """More than one share the port, and the settings of each have this number too."""
    tokenizer_processes: int
    record: Path | None
    limits: Limits
    door: Path | None
    """The file with keys, token issuers and budgets; None: everyone who reaches the router may call."""
    client_ca: Path | None
    """Callers must present a certificate signed by this CA."""

    def __post_init__(self) -> None:
        check_least(self, 1, "queue_capacity", "processes", "tokenizer_processes")
        highest = MAX_PORT + 1 - self.processes
        if self.service.metrics_port > highest:
            raise ValueError(f"--metrics-port is {self.service.metrics_port}; accepted: 0 to {highest}")
        if self.record is not None and self.processes > 1:
            raise ValueError(f"--record is {str(self.record)!r}; accepted: with --processes 1")
        if self.record is not None and not self.record.parent.is_dir():
            raise ValueError(f"--record is {str(self.record)!r}; accepted: a file in a directory that exists")
        if self.client_ca is not None and self.service.security.tls is None:
            raise ValueError("--client-ca is set; accepted: with --tls-ca, --tls-cert and --tls-key")
        for name in self.served_model_names:
            if not 0 < len(name) <= MAX_MODEL_NAME or not name.isprintable() or name.strip() != name:
                accepted = f"1 to {MAX_MODEL_NAME} printable characters without space around them"
                raise ValueError(f"--served-model-name is {name!r}; accepted: {accepted}")

    def formats(self, found: ChatFormats) -> ChatFormats:
        """Return how the model writes tool calls and reasoning: as flags say, or as it was found."""
        tools = found.tools if self.tool_format is None else self.tool_format
        reasoning = found.reasoning if self.reasoning_format is None else self.reasoning_format
        return ChatFormats(tools.replace(NO_FORMAT, ""), reasoning.replace(NO_FORMAT, ""))


def parse_config(argv: Sequence[str], number: int) -> RouterConfig:
    """Return the settings that flags give; raise `ValueError`, or exit with code 2 on unknown flags.

    `number` is this process's own, drawn at its start.
    """
    given = vars(flags(number).parse_args(argv))
    policy = policies.by_name(given["policy"])
    named = {
        "service": settings_of(given),
        "limits": limits_of(given),
        "policy": policy,
        "placement": Placement(given["placement"] or policy.placement),
        "timed": None if given["timed"] is None else load_timed(given["timed"]),
        "special_tokens_in_content": InContent(given["special_tokens_in_content"]),
        "served_model_names": tuple(given.pop("served_model_name")),
        "weights": parse_weights(given.pop("tenant_weights")),
    }
    return RouterConfig(**(given | named))


def flags(number: int) -> argparse.ArgumentParser:
    """Return the parser of a router's command line."""
    parser = argparse.ArgumentParser(prog="python -m router", description="A router: the fleet's public API.")
    add = parser.add_argument
    add_service_flags(
        parser,
        "127.0.0.1:50051",
        "where clients connect; 0: any free",
        "time to end streams after SIGTERM (20)",
    )
    add(
        "--router-id",
        default=own_name("router", number),
        metavar="ID",
        help="this router's name in the fleet and in logs, which no other has (router-<host name>-<number>, "
        "drawn at each start)",
    )
    add(
        "--policy",
        default=policies.DEFAULT,
        choices=policies.NAMES,
        help=f"how the fleet serves; the same for all of its workers ({policies.DEFAULT})",
    )
    add(
        "--placement",
        default=None,
        choices=[placement.value for placement in Placement],
        help="where prompts are computed; without it, "
        + ", ".join(f"{name}: {policies.by_name(name).placement.value}" for name in policies.NAMES),
    )
    add("--timed", metavar="PROFILE", help=f"the workers' --timed profile: {', '.join(names())}, or a file")
    for name, formats, written in (
        ("--tool-format", TOOL_FORMATS, "tool calls"),
        ("--reasoning-format", REASONING_FORMATS, "reasoning"),
    ):
        shown = f"how the model writes {written}; without it, as its chat template shows"
        add(name, choices=[NO_FORMAT, *sorted(formats)], help=shown)
    add(
        "--special-tokens-in-content",
        default=InContent.TEXT.value,
        choices=[meaning.value for meaning in InContent],
        help="control tokens that callers write into chats: read them as text, keep them as tokens, or "
        "refuse the request (text)",
    )
    add(
        "--generation-config",
        default=GENERATION_CONFIGS[0],
        choices=GENERATION_CONFIGS,
        help="how tokens are drawn where a request does not say: as the model's generation_config.json does, "
        "or by the defaults of the protocol (model)",
    )
    add(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="another name that requests may give the model, beside its own; may be repeated (none)",
    )
    add("--tenant-weights", default="", metavar="NAME=W,...", help="weights of tenants' shares (1 for each)")
    add(
        "--without-redis",
        default=WITHOUT_REDIS[0],
        choices=WITHOUT_REDIS,
        help="while Redis is away, refuse new requests, or serve them from this router's own view",
    )
    add("--queue-capacity", default=1024, type=int, metavar="N", help="requests that may wait (1024)")
    add(
        "--processes",
        default=1,
        type=int,
        metavar="N",
        help="routers behind the one port, each with a core, ID.0 and so on as its id, a metrics port (1)",
    )
    add(
        "--tokenizer-processes",
        default=1,
        type=int,
        metavar="N",
        help="processes that tokenise for each router (1)",
    )
    add("--record", default=None, type=Path, metavar="FILE", help="record every event, for replay")
    add_limit_flags(parser)
    add(
        "--door",
        type=Path,
        metavar="FILE",
        help="API keys, token issuers and budgets; without it everybody who reaches the router may call",
    )
    add("--client-ca", type=Path, metavar="FILE", help="require a client certificate signed by this CA")
    return parser


def parse_weights(text: str) -> TenantWeights:
    """Parse weights such as `a=2,b=0.5`; raises `ValueError` naming the flag."""
    weights: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, weight = part.rpartition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            raise ValueError(f"--tenant-weights has {part!r}; accepted: NAME=NUMBER,...") from None
    try:
        return TenantWeights(weights)
    except ValueError as error:
        raise ValueError(f"--tenant-weights: {error}") from error
