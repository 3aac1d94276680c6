"""Choose the fleet that a command calls: the one in its flags, else the newest that runs in this checkout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from baton.async_client import DEFAULT_ADDRESS, AsyncClient
from baton.client import Client
from baton.fleet.checkout import find_checkout
from baton.fleet.processes.errors import CheckoutNotFound, NoFleetRunning
from baton.fleet.rundir import runs_of
from baton.fleet.running import RunningFleet, running_fleets
from baton.security.credentials import UNENCRYPTED, Credentials
from baton.types import Timeout

C = TypeVar("C", AsyncClient, Client)


@dataclass(frozen=True, slots=True)
class Target:
    """A fleet's addresses, and the credentials it requires."""

    addresses: tuple[str, ...]
    credentials: Credentials
    gateways: tuple[str, ...] = ()
    """URLs, if the fleet was looked up."""


def client_of(
    kind: type[C], args: argparse.Namespace, total_s: float | None = None, target: Target | None = None
) -> C:
    """Return a client of `target`, or else of the fleet that the arguments name."""
    target = target or target_of(args)
    return kind(
        target.addresses,
        tenant=args.tenant,
        model=args.model,
        credentials=target.credentials,
        timeout=Timeout(connect_s=args.connect_s, total_s=total_s),
    )


def target_of(args: argparse.Namespace) -> Target:
    """Look for a running fleet if no flag names an address or credentials, and say on stderr what is called.

    Raises `NoFleetRunning` if there is none in the folder that `--run-dir` names.
    """
    return targets_of(args, only_newest=True)[0]


def targets_of(args: argparse.Namespace, *, only_newest: bool = False) -> list[Target]:
    """Return all fleets that `target_of` chooses from, newest first, and name them on stderr."""
    addresses = [args.address] if isinstance(args.address, str) else args.address
    named = Credentials(args.ca, args.cert, args.key, args.api_key_file)
    if addresses or named != UNENCRYPTED:
        if args.run_dir is not None:
            raise ValueError(
                "--run-dir finds a fleet's address and credentials; leave it out, or the flags that name them"
            )
        return [Target(tuple(addresses), named) if addresses else _default(named)]
    fleets = _of_the_checkout() if args.run_dir is None else found_in(args.run_dir)
    if not fleets:
        return [_default(UNENCRYPTED)]
    if only_newest:
        return [choose(fleets)]
    return [choose([fleet]) for fleet in fleets]


def _default(credentials: Credentials) -> Target:
    print(f"baton: calling {DEFAULT_ADDRESS}, the default; --address names another", file=sys.stderr)
    return Target((DEFAULT_ADDRESS,), credentials)


def found_in(run_dirs: Path) -> list[RunningFleet]:
    """Return the running fleets, newest first; raises `NoFleetRunning` if there is none."""
    fleets = running_fleets(run_dirs)
    if not fleets:
        raise NoFleetRunning(run_dirs)
    return fleets


def choose(fleets: Sequence[RunningFleet]) -> Target:
    """Choose the newest fleet, and name it on stderr."""
    print(f"baton: {in_words(fleets)}", file=sys.stderr)
    return Target(fleets[0].addresses, fleets[0].credentials, fleets[0].gateways)


def in_words(fleets: Sequence[RunningFleet]) -> str:
    """Return a line that names the first of these fleets as the chosen one."""
    newest, *others = fleets
    at = ", ".join(newest.addresses)
    reach = "in the clear" if newest.credentials == UNENCRYPTED else "with TLS"
    words = f"calling the fleet of {newest.run_dir} (process {newest.pid}) at {at}, {reach}"
    if not others:
        return words
    rest = ", ".join(str(fleet.run_dir) for fleet in others)
    return f"{words}; it is the newest of {len(fleets)} that run, --run-dir names another: {rest}"


def _of_the_checkout() -> list[RunningFleet]:
    try:
        return running_fleets(runs_of(find_checkout()))
    except CheckoutNotFound:  # a client alone was installed
        return []
