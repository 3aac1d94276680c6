"""Proves that a model which is not on the list computes what stock transformers does, before it serves.

In reading order:

    proving    loads a model and proves it
    sequences  the tokens that are computed
    stock      runs stock transformers on them, with its own attention and no paging
    paged      runs Baton on them: over blocks, in chunks, batched, resumed in other blocks
    exact      holds a model of bfloat16 in float32 for a while
    layers     watches what each decoder layer adds
    tolerance  how far apart both may be
    versions   the code that a proof is valid for

Imports `execution`, `model`, `kv` and, for the ways to cut tokens into steps, `calibration.cuts`.
"""
