"""KV blocks that leave the pool: kept in host memory and on a disk, verified when they come back.

    tiers        host memory and disk together: what is kept where, and what can be read
    host_memory  the blocks that are in host memory, with their checksums
    copies       slots of host memory, and copies between them and the pool
    arrivals     the thread that waits for copies from a device
    disk         the disk, and the thread that writes to it
    folder       a folder that one process at a time uses
    block_files  one file for each block: written, verified and deleted
    index        the blocks that are on the disk, without I/O
    reads        a read into blocks of the pool, which can be stopped
    readers      the threads that read host memory and the disk, and verify
    read_queue   the reads that wait for one of these threads, and how fast it is
    told         the callbacks by which the tiers tell what happens to blocks

Imports `scheduling`, and of `kvtransfer` only `verify` and the pool's protocol.
"""
