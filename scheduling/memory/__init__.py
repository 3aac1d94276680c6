"""KV blocks: `reservation` computes how many requests need, `preemption` chooses which one gives them up,
`disk_reads` decides whether reading blocks pays, `prefix_reads` from where they are read, and `block_hash`
identifies their content. The package may import only `scheduling`.
"""
