"""`baton certs`: a fleet's own CA and the certificates of its parts."""

from __future__ import annotations

import argparse
import datetime as dt

from baton.cli.exits import OK
from baton.security.certificates import PARTS, make_certificates


def run(args: argparse.Namespace) -> int:
    made = make_certificates(args.folder, args.host, args.days, dt.datetime.now(dt.UTC))
    print(f"{made.ca}  signs and is trusted; keep {made.ca_key.name} where no service runs")
    for part in PARTS:
        print(f"{made.cert(part)}  {made.key(part).name}")
    return OK
