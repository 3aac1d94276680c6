"""LoRA adapters of a model: read, checked, and added to its linear layers for the rows that ask for them.

    checkpoint  an adapter's files, as peft writes them, and what of them is served
    layers      linear layers with all adapters beside them, computed together
    attaching   puts the adapters of a worker into a loaded model

An adapter is known by its digest, of its weights and its config. Names belong to operators and callers.
"""
