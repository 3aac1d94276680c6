"""The blocks that groups hold, and which groups give way when blocks are short.

Read: `block_manager` (physical blocks, their references and the prefix cache) behind `block_pool` (what a
block table asks of it); `block_names` (how blocks are found again); `block_tables`; `room` (which groups
start, give way and come back) with `forecast` and `swap_memory`; `prefix_reads` (blocks on a disk or at
another worker); `loans` (blocks that other workers copy).
"""
