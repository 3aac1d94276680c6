"""KV blocks on a disk: kept when they leave the pool, verified when they come back.

    block_files  one file for each block: written, verified and deleted
    index        the blocks that are on the disk, without I/O
    reads        a read into blocks of the pool, which can be stopped
    tier         the threads in between, and what waits for them

Imports `kvtransfer.verify` and the pool's protocol alone.
"""
