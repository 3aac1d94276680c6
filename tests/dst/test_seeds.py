"""Two hundred simulated fleets, whatever strikes them, keep every promise."""

import pytest

from tests.dst.run import play, virtual
from tests.dst.scenario import draw

EACH = 25


@pytest.mark.parametrize("first", range(0, 200, EACH))
def test_no_seed_breaks_a_promise(first: int) -> None:
    with virtual():
        broken = {seed: play(draw(seed)).broken for seed in range(first, first + EACH)}
    found = [f"python -m tests.dst --seed {seed}: {why}" for seed, why in broken.items() if why is not None]
    assert not found, "\n".join(found)
