"""The data of the core, without the handlers that change it.

Read in this order:

    events      all that can happen to the core, and what workers state of themselves
    actions     all that the core can want done
    session     one request: its choices, its groups, their moves
    waiting     the groups of this router that wait, in order and summed up
    fleet       the connected workers, with what was reported by them and sent to them, and summed up for
                predictions
    state       all that the core knows, handed to the handlers of events

Imports nothing else of `router.core`.
"""
