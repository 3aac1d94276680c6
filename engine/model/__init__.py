"""A transformers model that serves: checked, loaded, quantised, fused, with attention over the KV pool.

    model           loads a model directory and holds its facts
    allow_list      which models are served by name
    unlisted        which other ones cannot be served, by their configuration
    checkpoint      checks that the files of a checkpoint are complete
    quantised       weights in 8 bits
    adapters        LoRA adapters beside the linear layers
    packed_linears  linear layers in bfloat16, in the order in which a CPU reads them
    pairing         whether a draft model has the vocabulary of the model that it drafts for
    fingerprint     identifies weights and block layout: equal ones may exchange KV
    step_batch      the ragged batch of a step, as the model takes it
    attention       the attention function of the models, and its kernels on a GPU
    cpu_attention   attention on a CPU
    dry_run         sees what each layer asks of attention
    parallel        a part of the model, for one of several processes
    fusion          fused modules in place of the model's own, where they fit
    deterministic   layers and attention whose bits do not depend on the other rows of a step

Of the engine it imports `engine.kv`. Its own files import downwards: `model` → `adapters`, `parallel` →
`fusion`, `deterministic`, `unlisted` → `dry_run`, `cpu_attention`, `quantised`, `packed_linears` →
`attention` → `step_batch`.
"""
