"""A step as the layers of a model see it: its batch, and attention over the KV pool.

    step_batch       the ragged batch of a step, with its rows grouped by adapter
    attention        the attention function of the models, and what it does on a GPU and on a CPU
    tiled_attention  attention on a CPU in tiles at absolute positions, for bits that depend on no other row
    dry_run          sees what each layer asks of attention

Of the engine it imports `engine.kv`.
"""
