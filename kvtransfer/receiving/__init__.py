"""The receiver's side of handoffs in a process.

receiver  receives a handoff, and borrows cached blocks in the same way
peers     the senders that it talks to, and how it reaches each
links     how fast borrowed blocks come from other workers
"""
