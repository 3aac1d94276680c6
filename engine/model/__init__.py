"""A transformers model that serves: checked, loaded, quantised, fused, with attention over the KV pool.

    model           loads a model directory and holds its facts
    allow_list      which models are served by name
    unlisted        which other ones cannot be served, by their configuration
    checkpoint      checks that the files of a checkpoint are complete
    quantised       weights in 8 bits
    adapters        LoRA adapters beside the linear layers
    pairing         whether a draft model has the vocabulary of the model that it drafts for
    fingerprint     identifies weights and block layout: equal ones may exchange KV
    attention       a step as layers see it: its batch, and attention over the KV pool
    parallel        a part of the model, for one of several processes
    fusion          fused modules in place of the model's own, where they fit
    deterministic   layers whose bits do not depend on the other rows of a step

Of the engine it imports `engine.kv`. Imports run one way: from its own files to `adapters` and
`deterministic`, to `parallel`, to `fusion`, to `attention` and `quantised`.
"""
