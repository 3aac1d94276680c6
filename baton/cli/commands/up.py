"""`baton up`: run a fleet until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shlex
import time

from rich.console import Console
from rich.text import Text

from baton.cli.arguments import spec_of
from baton.cli.exits import FLEET_FAILED, OK, program
from baton.cli.views.fleet_reporter import FleetReporter
from baton.fleet import Fleet, Keeper
from baton.fleet.checkout import find_checkout
from baton.fleet.rundir import listed
from baton.fleet.running import Control


async def run(args: argparse.Namespace) -> int:
    spec = spec_of(args)
    console, began, up = Console(), time.monotonic(), False
    with FleetReporter(console) as report:
        try:
            control = Control(report)
            async with Fleet(spec, control) as fleet, control.serving(fleet):
                with listed(find_checkout(), fleet.run_dir) as is_listed:
                    up = True
                    report.rest()
                    _invite(fleet, time.monotonic() - began, console, is_listed=is_listed)
                    await Keeper(fleet, report, restarts=not args.no_restart).keep()
            return FLEET_FAILED
        except asyncio.CancelledError:
            if not up:
                raise
            return OK  # Ctrl-C and SIGTERM are the normal ways to end a running fleet


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


def _http_example(fleet: Fleet) -> str:
    """Return a command that asks the first gateway; empty without one."""
    if not fleet.gateway_urls:
        return ""
    credentials = ""
    if fleet.secured is not None:
        ca, key = (shlex.quote(str(path)) for path in (fleet.secured.certificates.ca, fleet.secured.api_key))
        credentials = f'--cacert {ca} -H "Authorization: Bearer $(cat {key})" '
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16})
    kind = "-H 'content-type: application/json'"
    url = f"{fleet.gateway_urls[0]}/v1/chat/completions"
    return f"\n        curl {credentials}{url} {kind} -d {shlex.quote(body)}"


def _invite(fleet: Fleet, took_s: float, console: Console, *, is_listed: bool) -> None:
    baton = program()
    addresses = fleet.router_addresses
    flag = "" if is_listed else f" --run-dir {shlex.quote(str(fleet.run_dir.resolve()))}"
    reach = "with TLS" if fleet.secured else "without TLS; say --secure for certificates and an API key"
    console.print(
        Text.assemble(
            ("\nUp", "bold green"),
            f" in {took_s:.1f} s, listening on ",
            (", ".join(addresses), "bold"),
            f"{_where_http_is(fleet)}\nreach   this machine only, {reach}",
            f"{_how_redis_is_reached(fleet)}{_where_credentials_are(fleet)}\nlogs    {fleet.run_dir}",
            f'\ntry     {baton} generate{flag} "The list is"',
            f"\n        {baton} chat{flag}",
            f"\n        {baton} status{flag}{_http_example(fleet)}",
            "\nCtrl-C stops everything\n",
        ),
        soft_wrap=True,
    )
