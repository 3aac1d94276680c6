"""The workers as the router knows them, and what the fleet can do.

Read in this order:

    worker_facts     what a worker says of itself
    fleet            the connected workers, with what was reported by them and sent to them
    fleet_capacity   the fleet summed up for predictions, for each pace

Imports `events`, `session.session` and `scheduling`; nothing here knows `RouterState`.
"""
