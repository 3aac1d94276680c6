from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission.backlog import Place, WaitingLine


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcdefgh"), st.integers(0, 9)), max_size=60))
def test_the_line_counts_as_a_sorted_list_does(steps: list[tuple[int, str, int]]) -> None:
    _compare([((score, key), tokens) for score, key, tokens in steps])


def test_a_long_line_counts_the_same() -> None:
    drawn = random.Random(5)
    keys = [f"k{drawn.randrange(900)}" for _ in range(3000)]
    _compare([((len(key) * 7 + int(key[1:]) % 50, key), drawn.randrange(100)) for key in keys], every=37)


def _compare(steps: list[tuple[Place, int]], every: int = 1) -> None:
    """Each place joins, and leaves when it comes again."""
    waiting, expected = WaitingLine(), dict[Place, int]()
    for i, (place, tokens) in enumerate(steps):
        if place in expected:
            del expected[place]
            waiting.remove(place)
        else:
            expected[place] = tokens
            waiting.add(place, tokens)
        if i % every:
            continue
        assert len(waiting) == len(expected)
        assert waiting.tokens == sum(expected.values())
        assert waiting.head == min(expected, default=None)
        assert waiting.first(5) == sorted(expected)[:5]
        ahead = [other for other in expected if other < place]
        assert waiting.ahead_of(place) == (len(ahead), sum(expected[other] for other in ahead))
