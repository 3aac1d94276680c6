"""The pool of connections: half for an address, and idle ones make room."""

from __future__ import annotations

from gateway.serving.connection import Pool


class Fake:
    """A connection that can be closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def make_room(self) -> None:
        self.is_closed = True


def test_an_idle_connection_of_the_same_address_makes_room() -> None:
    pool, others, late, stranger = Pool(8, 8), [Fake() for _ in range(4)], Fake(), Fake()
    assert all(pool.enter(other, "a") for other in others)
    for other in others[1:]:
        pool.busy(other)
    assert pool.enter(late, "a")
    assert [other.is_closed for other in others] == [True, False, False, False]
    pool.busy(late)
    assert not pool.enter(Fake(), "a")
    assert pool.enter(stranger, "b")
    pool.idle(others[1])
    pool.leave(stranger)
    assert pool.enter(Fake(), "a")
    assert (others[1].is_closed, stranger.is_closed) == (True, False)


def test_a_connection_that_is_used_again_is_no_longer_the_oldest() -> None:
    pool, first, second = Pool(100, 2), Fake(), Fake()
    pool.enter(first, "a")
    pool.enter(second, "a")
    pool.busy(first)
    pool.idle(first)
    pool.enter(Fake(), "a")
    assert (first.is_closed, second.is_closed) == (False, True)
