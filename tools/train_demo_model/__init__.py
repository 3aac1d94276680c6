"""Make the demo checkpoint: a tiny Llama trained on Python's own documentation.

    python -m tools.train_demo_model [--corpus DIR] [--out demo_model]

Read `recipe`, then `corpus` (files to text), which uses `restructured` (reStructuredText to blocks) and
`chats` (questions and answers); then `checkpoint` (tokenizer, saving, loading), `training` and `model_card`.
It imports torch and transformers, and no other package of the project.
"""
