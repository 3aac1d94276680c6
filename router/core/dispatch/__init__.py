"""Workers for groups: chosen, sent to, and left again.

Read in this order:

    choice            which workers' capacity is offered to the queue, and which decode worker a group gets
    dispatch          sends a leased group to its workers
    drain             moves groups off a worker that drains, with their KV
    migrate           moves groups that wait for blocks on their worker
    seat_preemption   lets a running group give its seat to one of a higher class

`choice` imports only `capacity`, `session.session` and `scheduling`; the others change `state`.
"""
