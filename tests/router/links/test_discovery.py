"""Which files the name of an adapter stands for, where workers find changed files at different times."""

from __future__ import annotations

from router.links.discovery import digests_by_name
from runtime.state.records import LoraRecord


def test_what_most_workers_have_counts() -> None:
    old, new = "2" * 32, "1" * 32
    records = [LoraRecord({"red": digest}) for digest in (old, new, old)]
    assert digests_by_name(records) == {"red": old}
    assert digests_by_name([*records, LoraRecord({"red": new}), LoraRecord({"red": new})]) == {"red": new}


def test_all_routers_agree_where_as_many_workers_have_each() -> None:
    records = [LoraRecord({"red": "2" * 32, "blue": "3" * 32}), LoraRecord({"red": "1" * 32})]
    assert digests_by_name(records) == digests_by_name(records[::-1]) == {"red": "1" * 32, "blue": "3" * 32}
