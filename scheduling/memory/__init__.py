"""KV blocks: `preemption` chooses which running sequence gives them up, `tiers` names the places that a
worker has for them, `disk_reads` decides whether reading them pays, `prefix_reads` from where they are read,
and `block_hash` identifies their content. The package may import only `scheduling`.
"""
