"""Tries every causal model type of transformers with a tiny random model, and says which are served.

    tiny   makes tiny checkpoints
    trial  loads and proves one as --prove-model does
    table  writes the outcomes into docs/models.md

`make models` runs it.
"""
