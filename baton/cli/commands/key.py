"""`baton key`: a new API key of a tenant, added to the file of --door."""

from __future__ import annotations

import argparse

from baton.cli.exits import OK
from baton.security.auth_file import add_key, new_api_key
from baton.security.secret_files import write_secret


def run(args: argparse.Namespace) -> int:
    limits = ("requests_per_s", "request_burst", "tokens_per_s", "token_burst")
    budget = {name: getattr(args, name) for name in limits if getattr(args, name) is not None}
    key = new_api_key()
    write_secret(args.out, f"{key}\n".encode())  # first, so that the file never accepts a key that nobody has
    try:
        rights = {"classes": args.allow_class, "operator": args.operator, "delegate": args.delegate}
        add_key(args.door_file, key, args.tenant, budget=budget, **rights)
    except BaseException:
        args.out.unlink()
        raise
    print(f"{args.out} holds the key; {args.door_file} only its hash")
    return OK
