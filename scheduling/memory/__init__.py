"""KV blocks: `reservation` computes how many requests need, `preemption` chooses which one gives them up, and
`block_hash` identifies their content. The package may import only `scheduling`.
"""
