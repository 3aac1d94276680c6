"""From a request as received to one that the core can take.

In reading order: `preprocessor` (checks, tokenises and hashes), `tokenizer_pool` (the processes that
tokenise), `tokenizer_process` (what they run), `tokenizer_line` (the order in which they do), `conversation`
(messages and tools), `chat_encoder` (a chat's tokens and the calls that it asks for), `chat_template`,
`plain_text` (control tokens that callers write), `grammar_compiler` (output formats), `fair_turns` (whose
format is next), `helpers` (the ends of these processes), `model_facts` (the model's limits), `prefix_lookup`
(which workers have a prompt's beginning).

May import `chat_formats`, `output_text`, `scheduling` and `state`, and of the router `api.validation`,
`auth.limits`, `errors`, `links.shell`, `core.events`, `core.admission.admit` and `core.queue.queue`.
"""
