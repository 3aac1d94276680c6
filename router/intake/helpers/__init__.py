"""Tokenise, and render chats, in processes of their own.

In reading order: `helper` (a process that computes for this one), `tokenizer_pool` (those that tokenise, and
the texts that wait for them), `tokenizer_line` (the order of these), `tokenizer_process` (what the processes
run: a chat's tokens, those of earlier turns, and the calls that it asks for), `chat_template` (and its limits
of time and memory), `plain_text` (control tokens that callers write).

May import `model_output`, `scheduling` and `runtime`, and of the router `errors`, `limits` and `request`.
"""
