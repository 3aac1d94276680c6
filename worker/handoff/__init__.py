"""How workers of both kinds take part in KV handoffs.

sides        the sides of the handoff that a worker has; its kind builds them. The sender's turns the engine's
             reports into offers and commits, and lends
read_side    reads blocks from host memory and the disk that the engine waits for
fetch_side   fetches blocks that other workers lend and the engine waits for
tier_slots   page-locked host memory for blocks that leave a GPU's pool
staging      the engine's pool as a source and a target, in place or through page-locked memory
cuda_ipc     whether KV goes from GPU to GPU
"""
