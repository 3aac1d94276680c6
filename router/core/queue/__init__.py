"""Groups in the fleet's queue, until they are dispatched.

Read in this order:

    queue            creates groups, gives them places, and takes them out
    waiting          the groups of this router that wait, in order and summed up
    grants           offers free capacity to the queue, and turns grants into leases
    local_service    places groups while the store is away

Imports `state`, `dispatch` and `session.session`; `waiting` imports only the last.
"""
