"""KV blocks that leave the pool: kept in host memory and on a disk, verified when they come back.

    tiers        host memory and disk together: what is kept where, and what can be read
    host_memory  the blocks that are in host memory, with their checksums
    disk         the disk, and the thread that writes to it
    folder       a folder that one process at a time uses
    block_files  one file for each block: written, verified and deleted
    index        the blocks that are on the disk, without I/O
    reads        a read into blocks of the pool, which can be stopped
    read_queue   the thread that does the reads of one tier, and how fast it is
    told         the callbacks by which the tiers tell what happens to blocks

Imports `kvtransfer.verify` and the pool's protocol alone.
"""
