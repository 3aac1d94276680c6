"""This router is about to end: whoever can go on elsewhere is told to, everybody else is served to the end.

A client that resumes brings the tokens it has, so nothing of its request is kept here: a session that nobody
hears is forgotten at once, and its workers are free before the next router has asked them.
"""

from __future__ import annotations

from router.core.actions import TellLeaving
from router.core.session import ending
from router.core.state import RouterState


def leave(state: RouterState) -> None:
    """Take nothing new from now on."""
    state.leaving = True
    for session in list(state.live.values()):
        if not session.listeners:
            ending.abandon(state, session)
        for listener, grace_s in session.listeners.items():
            if grace_s > 0:
                state.do(TellLeaving(listener))
