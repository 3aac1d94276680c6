"""Groups in the fleet's queue, until they are dispatched.

Read in this order:

    queue      groups: their phases, places and holds, and the attempts that they are sent on
    waiting    the groups of this router that wait, in order and summed up
    ways       ways that are left after attempts failed: sources and decode workers
    grants     offers free capacity to the queue, chooses decode workers, turns grants into leases

Of the core it imports `actions`, `capacity`, `events`, `session.session` and `state`; `waiting` imports only
`session.session`.
"""
