"""This router is about to end: whoever can go on elsewhere is told to, everybody else is served to the end.

A client that resumes brings the tokens it has, so nothing of its request is kept here: a session that nobody
hears is forgotten at once, and its workers are free before the next router has asked them.
"""

from __future__ import annotations

from router import ending
from router.actions import TellLeaving
from router.book import Book
from router.sessions import Session


def leave(book: Book) -> None:
    """Take nothing new from now on."""
    book.leaving = True
    for session in list(book.live.values()):
        if session.listener is None:
            let_go(book, session)
        elif session.resume_grace_s > 0:
            book.do(TellLeaving(session.listener))


def let_go(book: Book, session: Session) -> None:
    """Nobody hears it here any more, and its client goes on elsewhere or not at all."""
    ending.abandon(book, session)
