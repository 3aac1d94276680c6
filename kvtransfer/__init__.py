"""The handoff of KV blocks from one worker to another: offered, fetched, verified, acknowledged.

In reading order:

    handoff           the life of a block, and the sender's half of a handoff, without I/O
    receiver_handoff  the receiver's half, without I/O
    fence             which attempts of a request a process still accepts
    manifest          what the sender tells the receiver
    sending           the sender's side of a process, with its gRPC service, and the blocks that it lends
    receiving         the receiver's side, and how it reaches each sender
    pools             the memory that blocks are read from and written to
    transports        how blocks get from one process to the other
    tiers             blocks that left the pool, in host memory and in files
    threads           work on other threads that is never left behind
    convert           to and from the protocol
    errors            what can go wrong

Imports `scheduling`, `runtime` and `baton`; never the engine, whose memory it sees through protocols.
"""
