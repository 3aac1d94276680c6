"""Cached blocks that a worker borrows from another one, to compute less of a prompt.

    links    how fast blocks come from other workers
    lending  the lender's side: which loans there are, and what the engine is asked for

The blocks travel by the handoff's own path: opened, offered, fetched, verified and acknowledged under a fence
that belongs to the loan alone (`kvtransfer.receiver` borrows). What differs is that no attempt has announced
it, and that the lender may have fewer blocks than are wanted, or none.
"""
