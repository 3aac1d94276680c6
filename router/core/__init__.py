"""The router's behaviour, without any input or output: events in, actions out.

Read in this order:

    core        `RouterCore.on`: which event is handled where, and the way of a request; what is looked after
                ten times a second
    model       data: all that can happen and be done, requests, workers, and what the core knows

A module for each moment of a request:

    arrive      a call comes in: a new request, or one that is known here
    admit       it has a place in the queue: accepted, taken at risk or refused; some are put behind
    judge       what a request will experience, and the decision on it
    grant       free capacity is offered to the queue; a grant becomes a lease on a decode worker
    dispatch    a group's place in the queue, what it holds, and the workers it is sent to
    deliver     step reports become tokens that clients receive
    finish      groups and sessions end; a router leaves
    recover     attempts that fail, and the next ones
    move        groups leave their workers before they have ended
    outage      the store goes away, is done without, and comes back

Only the simulator uses

    simulated_runs  several tokens of one choice in one report

Imports `scheduling` for every decision that is pure, `runtime.state.records` and `router.errors`; no
I/O, no clock.
"""
