"""`baton certs`: a fleet's own CA and the certificates of its parts."""

from __future__ import annotations

import argparse
import datetime as dt

from baton.cli.exits import OK
from baton.security.certificates import PARTS, make_certificates
from baton.security.kubernetes_secrets import Secrets, keep_certificates


def run(args: argparse.Namespace) -> int:
    now = dt.datetime.now(dt.UTC)
    if args.secrets is not None:
        made_any = keep_certificates(Secrets.of_pod(), args.secrets, args.folder, args.host, args.days, now)
        print(f"{args.secrets}-*  {'written; restart what runs' if made_any else 'good for now'}")
        return OK
    made = make_certificates(args.folder, args.host, args.days, now)
    print(f"{made.ca}  signs and is trusted; keep {made.ca_key.name} where no service runs")
    for part in PARTS:
        print(f"{made.cert(part)}  {made.key(part).name}")
    return OK
