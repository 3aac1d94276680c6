"""Draw how policies fill steps: the page's timelines of the same requests, one below the other.

    python -m tests.gateway.page.picture docs/pictures/timeline.png

Each policy runs a fleet of its own, of one worker that computes nothing and takes the time of a profile.
"""

from __future__ import annotations

import asyncio
import base64
import html
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from baton import AsyncClient, Slo, Stop
from baton.fleet import Fleet, FleetSpec
from tests.gateway.page.browser import opened_page
from tools.house.source_tree import ROOT

POLICIES = {
    "static": "static batching: the next batch begins when the last answer of this one has ended",
    "prefill_first": "prefill first: whoever comes joins at once, and the others wait for its whole prompt",
    "slack": "slack, Baton's own: a prompt is cut so that every decode beside it is in time",
}
PROFILE = "h200-llama-3.1-8b"
SECONDS = 7.0
"""How long requests come; the timeline shows eight seconds."""
PER_S = 4.0
SLO = Slo(ttft_ms=3000, tpot_ms=40, allow_at_risk=True)
"""Nobody is refused, so that all policies serve the same requests."""
WIDTH = 880
PIXELS = 2
"""Pixels of the picture for each of a page's, so that it is sharp on fine screens."""
LEGEND = (
    "Eight seconds of one worker. Each column is a step, as wide as it lasted. Above the line: tokens of "
    "prompts (orange) and decodes (blue) that were computed together. Below it: a row for each sequence, "
    "where it got a token."
)
_STYLE = (
    "body{margin:0;padding:12px;font:15px system-ui,sans-serif;background:#fff;color:#1c1c1c;width:880px;"
    "box-sizing:border-box}p{margin:10px 0 4px}img{display:block;width:856px}b{font-weight:600}"
)


async def timeline(policy: str, folder: Path) -> bytes:
    """Return the timeline of a policy as a PNG."""
    spec = FleetSpec(
        model=ROOT / "demo_model",
        prefill=0,
        decode=1,
        timed=PROFILE,
        policy=policy,
        gateways=1,
        run_dir=folder / policy,
    )
    async with Fleet(spec) as fleet, opened_page() as page:
        await page.resize(WIDTH, 900, PIXELS)
        # Drawing each frame would take the processor time that the worker needs to be on time.
        await page.prefer("reduced-motion", "reduce")
        await page.open(f"{fleet.gateway_urls[0]}/")
        await page.until("document.getElementById('model').textContent === 'demo_model'")
        await page.click("#tab-timeline")
        await page.until("document.querySelector('section:not([hidden]) .feed')?.textContent === 'Live'")
        async with AsyncClient(fleet.router_addresses) as client, asyncio.TaskGroup() as group:
            began = asyncio.get_running_loop().time()
            tasks = [group.create_task(ask(client, request, began)) for request in requests()]
            await asyncio.sleep(SECONDS + 0.5)
            shot = await page.picture_of(".steps canvas")
            for task in tasks:
                task.cancel()
        return shot


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that comes `at_s` seconds after the first one."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


def requests() -> list[Asked]:
    """Return the same requests each time."""
    rng, at_s, asked = random.Random(4), 0.0, []
    while at_s < SECONDS:
        asked.append(Asked(at_s, rng.randint(600, 3600), rng.randint(40, 240)))
        at_s += rng.expovariate(PER_S)
    return asked


async def ask(client: AsyncClient, asked: Asked, began: float) -> None:
    """Ask when it is time, and read the answer."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(began + asked.at_s - loop.time())
    prompt = [3 + (place * 7 + asked.prompt_tokens) % 250 for place in range(asked.prompt_tokens)]
    stop = Stop(max_tokens=asked.output_tokens, ignore_eos=True)
    async for _ in client.generate(prompt, stop=stop, slo=SLO):
        pass


async def draw(path: Path) -> None:
    """Write the picture of all policies."""
    parts = []
    with tempfile.TemporaryDirectory(prefix="baton-picture-") as folder:
        for policy, what in POLICIES.items():
            name, _, said = what.partition(":")
            shot = base64.b64encode(await timeline(policy, Path(folder))).decode()
            parts.append(
                f"<p><b>{html.escape(name)}</b>:{html.escape(said)}</p>"
                f'<img src="data:image/png;base64,{shot}">'
            )
    parts.append(f"<p>{LEGEND}</p>")
    document = f'<!doctype html><meta charset="utf-8"><style>{_STYLE}</style>{"".join(parts)}'
    async with opened_page() as page:
        await page.resize(WIDTH, 900, PIXELS)
        await page.open(f"data:text/html;base64,{base64.b64encode(document.encode()).decode()}")
        path.write_bytes(await page.picture_of("body"))


if __name__ == "__main__":
    asyncio.run(draw(Path(sys.argv[1])))
