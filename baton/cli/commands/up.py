"""`baton up`: run a fleet, or one for each of several models, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

from rich.console import Console
from rich.text import Text

from baton.async_client import AsyncClient
from baton.cli.arguments import specs_of
from baton.cli.exits import FLEET_FAILED, OK, program
from baton.cli.views.fleet_reporter import FleetReporter
from baton.fleet import Fleet, FleetEvent, FleetSpec, Keeper
from baton.fleet.checkout import find_checkout
from baton.fleet.launcher import cancel
from baton.fleet.rundir import listed
from baton.fleet.running import Control

Tell = Callable[[FleetEvent], None]


async def run(args: argparse.Namespace) -> int:
    specs = specs_of(args)
    console, began, up = Console(), time.monotonic(), False
    with FleetReporter(console) as report:
        try:
            async with AsyncExitStack() as stack:
                fleets: list[Fleet] = []
                keeping: list[asyncio.Task[None]] = []
                for spec in reversed(specs):  # the first one has the gateway, which calls all others
                    tell: Tell = report if len(specs) == 1 else _labelled(report, spec)
                    routers = [fleet.router_addresses for fleet in reversed(fleets)]
                    control = Control(tell)
                    fleet = Fleet(dataclasses.replace(spec, further_fleets=routers), control)
                    fleets.append(await stack.enter_async_context(fleet))
                    await stack.enter_async_context(control.serving(fleet))
                    is_listed = stack.enter_context(listed(find_checkout(), fleet.run_dir))
                    keeper = Keeper(fleet, tell, restarts=not args.no_restart)
                    keeping.append(asyncio.create_task(keeper.keep()))
                    stack.push_async_callback(cancel, keeping)
                up = True
                report.rest()
                fleets.reverse()
                names = [await _name_of(each) for each in fleets] if len(fleets) > 1 else []
                _invite(fleets, names, time.monotonic() - began, console, is_listed=is_listed)
                await asyncio.gather(*keeping)
            return FLEET_FAILED
        except asyncio.CancelledError:
            if not up:
                raise
            return OK  # Ctrl-C and SIGTERM are the normal ways to end a running fleet


def _labelled(report: Tell, spec: FleetSpec) -> Tell:
    """Return what reports the events of one of several fleets: a process's name is after its model's."""

    def tell(event: Any) -> None:
        has_name = hasattr(event, "name")
        report(dataclasses.replace(event, name=f"{spec.model.name} {event.name}") if has_name else event)

    return tell


async def _name_of(fleet: Fleet) -> str:
    """Return the name of a fleet's model, as its routers say it."""
    async with AsyncClient(fleet.router_addresses, credentials=fleet.credentials) as client:
        return (await client.models())[0].name


def _where_credentials_are(fleet: Fleet) -> str:
    if fleet.secured is None:
        return ""
    files = dataclasses.asdict(fleet.credentials)
    named = ", ".join(f"--{name.replace('_', '-')} {path.name}" for name, path in files.items())
    return f"\nsecrets {fleet.secured.certificates.folder}, for other clients: {named}"


def _how_redis_is_reached(fleet: Fleet) -> str:
    """Describe a secured fleet's Redis; its other channels use TLS."""
    if fleet.secured is None:
        return ""
    if fleet.redis_url.startswith("rediss:"):
        return "\nredis   with TLS, both sides with certificates"
    whose = "of your own" if fleet.spec.redis_url else "that only you can open, and with a password"
    return f"\nredis   without TLS, on a unix socket {whose}; it listens on no network"


def _where_http_is(fleet: Fleet) -> str:
    urls = ", ".join(fleet.gateway_urls)
    return urls and f"\nhttp    {urls}, for clients of OpenAI's and Anthropic's APIs"


def _http_example(fleet: Fleet, names: Sequence[str]) -> str:
    """Return a command that asks the first gateway, for the first of several models; empty without one."""
    if not fleet.gateway_urls:
        return ""
    credentials = ""
    if fleet.secured is not None:
        ca, key = (shlex.quote(str(path)) for path in (fleet.secured.certificates.ca, fleet.secured.api_key))
        credentials = f'--cacert {ca} -H "Authorization: Bearer $(cat {key})" '
    model = {"model": names[0]} if names else {}
    body = json.dumps(model | {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16})
    kind = "-H 'content-type: application/json'"
    url = f"{fleet.gateway_urls[0]}/v1/chat/completions"
    return f"\n        curl {credentials}{url} {kind} -d {shlex.quote(body)}"


def _invite(
    fleets: Sequence[Fleet], names: Sequence[str], took_s: float, console: Console, *, is_listed: bool
) -> None:
    """Say how the first fleet is reached; `names` has the models of all if there are several."""
    baton, fleet = program(), fleets[0]
    models = "".join(
        f"\nmodel   {name}, at {', '.join(each.router_addresses)}, logs {each.run_dir}"
        for name, each in zip(names, fleets, strict=False)
    )
    addresses = fleet.router_addresses
    flag = "" if is_listed else f" --run-dir {shlex.quote(str(fleet.run_dir.resolve()))}"
    reach = "with TLS" if fleet.secured else "without TLS; say --secure for certificates and an API key"
    console.print(
        Text.assemble(
            ("\nUp", "bold green"),
            f" in {took_s:.1f} s, listening on ",
            (", ".join(addresses), "bold"),
            f"{_where_http_is(fleet)}{models}\nreach   this machine only, {reach}",
            f"{_how_redis_is_reached(fleet)}{_where_credentials_are(fleet)}\nlogs    {fleet.run_dir}",
            f'\ntry     {baton} generate{flag} "The list is"',
            f"\n        {baton} chat{flag}",
            f"\n        {baton} status{flag}{_http_example(fleet, names)}",
            "\nCtrl-C stops everything\n",
        ),
        soft_wrap=True,
    )
