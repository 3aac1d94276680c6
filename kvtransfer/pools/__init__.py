"""The memory that a handoff reads from and writes to.

pool         the protocols: a pool, a sender's source of blocks, a receiver's target
host_blocks  blocks in host memory, where they are, and their checksums
staging      page-locked host memory between a device and the handoff
on_device    a device's memory, mapped by the other process
"""
