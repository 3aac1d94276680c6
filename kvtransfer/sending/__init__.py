"""The sender's side of handoffs in a process.

    sender   all handoffs that the process sends
    service  the gRPC service in front of them
    lending  cached blocks that it lends: which loans there are, and what the engine is asked for

A loan travels by the handoff's own path: opened, offered, fetched, verified and acknowledged under a fence
that belongs to the loan alone. What differs is that no attempt has announced it, and that the lender may have
fewer blocks than are wanted, or none.
"""
