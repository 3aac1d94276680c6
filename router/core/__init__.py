"""The router's behaviour, without any input or output: events in, actions out.

Read in this order:

    core        `RouterCore.on`: which event is handled where, and the way of a request
    events      all that can happen to the core
    actions     all that the core can want done
    session     one request, from its call to its end
    admission   whether it is accepted, and what it is promised
    queue       its place in the fleet's queue, the grants that come of it, and the workers it is sent to
    dispatch    the workers that it is moved away from
    capacity    the workers as the router knows them, and what the fleet can do
    state       all that the core knows, handed to the handlers of events
    chores      what is looked after ten times a second
    outage      the store goes away, is done without, and comes back

Imports `scheduling` for every decision that is pure, `state.records`, and `router.errors`; no I/O, no clock.
"""
