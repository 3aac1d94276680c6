"""Make the demo checkpoint: a tiny Llama trained on Python's own documentation.

    python -m tools.train_demo_model [--corpus DIR] [--out demo_model]

Read `config` (the recipe), `corpus` (files, hold-out) → `restructured` (reStructuredText to blocks) → `chats`
(questions and answers) → `tokenizer` → `dataset` (batches) → `training` → `export` (checkpoint) → `samples`
and `model_card`. It imports torch and transformers, and no other package of the project.
"""
