"""How a worker takes part in KV handoffs.

build        builds the sender's side
sender_side  turns the engine's reports into offers and commits
staging      the engine's pool as a source and a target, in place or through page-locked memory
cuda_ipc     whether KV goes from GPU to GPU
nixl         whether KV goes by NIXL
"""
