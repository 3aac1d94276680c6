"""Faults that no single process shows are seen to act on a real fleet, and harm no stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.arena import Arena
from tests.chaos.burn import Battle, Orders
from tests.chaos.plan import Fault, Kind, Lane, Phase, Place, pair_cell
from tests.chaos.strikes import Pace, Striker
from tests.chaos.tally import Tally
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.integration

SEEN = (
    Fault(Kind.CUT, Phase.DECODE, Place.ROUTER_DECODE),
    Fault(Kind.ONE_WAY, Phase.PREFILL, Place.ROUTER_PREFILL),
    Fault(Kind.HALF_OPEN, Phase.DECODE, Place.ROUTER_REDIS),
    Fault(Kind.ONE_WAY, Phase.RELAY, Place.CLIENT_ROUTER),
    Fault(Kind.CLOCK, Phase.QUEUE, Place.REDIS),
    Fault(Kind.DRAIN, Phase.DECODE, Place.DECODE),
    Fault(Kind.DRAIN, Phase.PREFILL, Place.ROUTER),
    Fault(Kind.ROLL, Phase.PREFILL, Place.PREFILL),
)
TWICE = (
    Fault(Kind.DROP, Phase.PREFILL, Place.PREFILL),
    Fault(Kind.CUT, Phase.DECODE, Place.ROUTER_DECODE),
)
SEED = 7


class Given(Striker):
    """Strikes with given faults, each until it was seen to act."""

    def __init__(
        self, arena: Arena, tally: Tally, faults: tuple[Fault, ...], acts: Callable[[], bool]
    ) -> None:
        lane = Lane(SEED, "given", tuple(Kind), {})
        super().__init__(arena, lane, tally, Pace(tally, 1, 10**9))
        self._given, self._acts = faults, acts

    async def run(self, until: float) -> None:
        end = time.monotonic() + 2 * PATIENCE_S
        while not self._acts():
            assert time.monotonic() < end, f"{' and '.join(map(str, self._given))} never acted"
            await self.strike(self._given)


@pytest.mark.long
async def test_each_is_seen_to_act_and_harms_no_stream(tmp_path: Path) -> None:
    tally = Tally()
    orders = Orders(SEED, 0.0)
    async with Arena(tmp_path / "run", orders.placement) as arena:
        battle = Battle(arena, orders, tally, Pace(tally, 1, 10**9), say=lambda _: None)
        await battle.learn()

        def seen(fault: Fault) -> Given:
            return Given(arena, tally, (fault,), lambda: tally.seen[f"{fault.kind} of {fault.place}"] > 0)

        twice = Given(arena, tally, TWICE, lambda: tally.pairs[pair_cell(*TWICE)] > 0)
        await battle.wave([*map(seen, SEEN), twice], until=0.0)
        await battle.rest()
    assert not tally.bad, tally.failures
    assert tally.again["soon"] > 0
