"""From a request as received to one that the core can take.

In reading order: `preprocessor` (checks, tokenises and hashes), `tokenizer_pool` (the processes that
tokenise), `tokenizer_process` (what they run), `helpers` (how they are called, and how they end),
`tokenizer_line` (the order of their work), `conversation` (messages and tools), `chat_encoder` (a chat's
tokens and the calls that it asks for), `chat_template`, `grammar_compiler` (output formats, in a process of
its own), `fair_turns` (whose format is next), `model_facts` (the model's limits), `prefix_lookup` (which
workers have a prompt's beginning).

May import `router.api.validation`, `router.auth.limits`, `router.links.shell`, `output_text` and
`chat_formats`.
"""
