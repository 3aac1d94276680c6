"""Make the demo checkpoint: a tiny Llama trained on Python's own documentation.

    python -m tools.train_demo_model [--corpus DIR] [--out demo_model]

Read ``corpus`` (files, hold-out) → ``restructured`` (reStructuredText to blocks) → ``chats`` (questions and
answers) → ``tokenizer`` → ``batches`` → ``training`` → ``export`` (checkpoint and model card).
"""
