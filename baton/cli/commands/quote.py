"""`baton quote`: the promise a prompt would get now, without sending it."""

from __future__ import annotations

import argparse
import dataclasses
import json

from baton.async_client import AsyncClient
from baton.cli.commands.generate import prompt_of
from baton.cli.exits import OK, TRY_LATER, in_flags
from baton.cli.request_flags import request_of
from baton.cli.target import client_of
from baton.types import Quote, Verdict
from baton.wire.fields import rounded


async def run(args: argparse.Namespace) -> int:
    async with client_of(AsyncClient, args) as client:
        quote = await client.quote(
            prompt_of(args), truncate_prompt_tokens=args.truncate_prompt_tokens, **request_of(args)
        )
    print(json.dumps(rounded(dataclasses.asdict(quote))) if args.json else in_words(quote), flush=True)
    return TRY_LATER if quote.verdict is Verdict.REFUSED else OK


def in_words(quote: Quote) -> str:
    """Return the verdict, the predictions beside the requested SLO, and what to do about a refusal."""
    promise = quote.promise
    rows = (
        ("TTFT", promise.predicted_ttft_ms, promise.ttft_ms),
        ("TPOT", promise.predicted_tpot_ms, promise.tpot_ms),
        ("ITL", promise.predicted_itl_ms, promise.itl_ms),
    )
    lines = [f"{quote.verdict}, for a prompt of {quote.prompt_tokens} tokens"]
    for name, predicted_ms, requested_ms in rows:
        requested = "not asked for" if requested_ms is None else f"{requested_ms} ms asked for"
        lines.append(f"  {name:<4}  {predicted_ms:9.1f} ms predicted, {requested}")
    if quote.attainable is not None:
        lines.append(f"possible now: {in_flags(quote.attainable)}")
    if quote.retry_after_s is not None:
        lines.append(f"as asked, try again in {quote.retry_after_s:.1f} s")
    return "\n".join(lines)
