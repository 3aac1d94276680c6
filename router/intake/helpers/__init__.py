"""Tokenise, and render chats, in processes of their own.

In reading order: `helper` (a process that computes for this one), `tokenizer_pool` (those that tokenise, and
the texts that wait for them), `tokenizer_line` (the order of these), `tokenizer_process` (what the processes
run), `chat_encoder` (a chat's tokens and the calls that it asks for), `chat_template`, `template_limits`,
`kept_tokens` (the tokens of earlier turns).

May import `model_output`, `scheduling` and `runtime`, and of the router `errors`, `intake.plain_text`,
`limits` and `request`.
"""
