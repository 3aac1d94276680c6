"""The watch reads the commands that Redis reports."""

from __future__ import annotations

from tests.fleet.order_watch import CLASS_SCORE, OrderWatch


def feed(watch: OrderWatch, *commands: str) -> None:
    """Commands without quotes, a word each."""
    for command in commands:
        words = " ".join(f'"{"" if word == "-" else word}"' for word in command.split("|"))
        watch.take(f"+1700000000.1 [0 lua] {words}\r\n".encode())


def enqueue(watch: OrderWatch, request: str, due: int, slo_class: int = 0) -> None:
    feed(watch, f"ZADD|{{baton}}:queue|{slo_class * CLASS_SCORE + due}|{request}")


def grant(watch: OrderWatch, request: str) -> None:
    feed(watch, f"ZREM|{{baton}}:queue|{request}", f"ZADD|{{baton}}:grants|1|{request}")


def test_grants_in_order_pass_nobody() -> None:
    watch = OrderWatch()
    for place, request in enumerate("abc"):
        enqueue(watch, request, place)
    for request in "abc":
        grant(watch, request)
    assert (watch.facts.granted, watch.facts.passed, watch.facts.most_waiting) == (3, 0, 3)


def test_one_that_was_due_earlier_is_seen_to_be_passed() -> None:
    watch = OrderWatch()
    enqueue(watch, "a", 1)
    enqueue(watch, "b", 2)
    grant(watch, "b")
    assert (watch.facts.passed, watch.facts.passed_beyond_flight) == (1, 1)


def test_grants_in_flight_excuse_as_many() -> None:
    watch = OrderWatch()
    enqueue(watch, "a", 1)
    grant(watch, "a")
    enqueue(watch, "b", 2)
    enqueue(watch, "c", 3)
    grant(watch, "c")
    assert (watch.facts.passed, watch.facts.passed_beyond_flight) == (1, 0)
    feed(watch, "ZREM|{baton}:grants|a", "ZREM|{baton}:grants|c")
    enqueue(watch, "d", 4)
    grant(watch, "d")
    assert (watch.facts.passed, watch.facts.passed_beyond_flight) == (2, 1)


def test_another_class_and_one_that_left_are_not_passed() -> None:
    watch = OrderWatch()
    enqueue(watch, "batch", 1, slo_class=2)
    enqueue(watch, "gone", 2, slo_class=1)
    enqueue(watch, "standard", 3, slo_class=1)
    feed(watch, "ZREM|{baton}:queue|gone")
    grant(watch, "standard")
    assert watch.facts.passed == 0


def test_the_most_that_was_leased_is_kept() -> None:
    watch = OrderWatch()
    name = "leases:decode-0:abc"
    key = "{baton}:" + name
    feed(watch, f"HSET|{key}|a|5 99", f"HSET|{key}|-|5 99", f"HSET|{key}|b|7 99", f"HSET|{key}|-|12 99")
    feed(watch, f"HDEL|{key}|a", f"HSET|{key}|-|7 99", "HSET|{baton}:credits:prefill-0:x|-|900 99")
    assert watch.facts.max_leased == {"decode-0": 12}
    assert watch.facts.max_seats == {"decode-0": 2}
    assert watch.ledgers == {name, "credits:prefill-0:x"}
