"""The blocks that groups hold, and which groups give way when blocks are short.

Read: `stores` (where blocks are: the pool, host memory, other tiers and workers); `block_manager` (physical
blocks, their references and the prefix cache); `block_tables`, with the names by which blocks are found
again; `room` (which groups start, give way and come back), with its forecast.
"""
