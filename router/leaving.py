"""This router is about to end: whoever can go on elsewhere is told to, everybody else is served to the end.

A client that resumes brings the tokens it has, so nothing of its request is kept here: a session that nobody
hears is forgotten at once, and its workers are free before the next router has asked them.
"""

from __future__ import annotations

from router import ending
from router.actions import TellLeaving
from router.book import Book


def leave(book: Book) -> None:
    """Take nothing new from now on."""
    book.leaving = True
    for session in list(book.live.values()):
        if session.listener is None:
            ending.abandon(book, session)
        elif session.resume_grace_s > 0:
            book.do(TellLeaving(session.listener))
