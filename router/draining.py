"""What runs on a decode worker that drains goes on at another one.

It stays where it is for as long as no other worker has room: the one that drains decodes on until it ends.
"""

from __future__ import annotations

from router.book import Book
from router.fleet import DECODE, Worker
from router.migrating import has_room
from router.recovery import start_elsewhere
from router.sessions import Group, Phase


def clear(book: Book, worker: Worker) -> None:
    """Find another place for what decodes on a worker that drains."""
    for group in list(worker.groups.values()):
        if group.phase is Phase.RUNNING and group.decode_key == worker.key and group.decode_reported:
            target = _roomiest(book, group)
            if target is not None:
                start_elsewhere(book, group, worker.key)


def _roomiest(book: Book, group: Group) -> Worker | None:
    fitting = [one for one in book.fleet.open(DECODE) if has_room(book, group, one)]
    return min(fitting, key=lambda one: (one.key in group.avoided, -one.free_blocks, one.key), default=None)
