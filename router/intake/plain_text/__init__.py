"""Keep texts that callers write from spelling the control tokens of a model.

`control_tokens` (which tokens these are, and the marks that stand for their texts while a template runs),
`plain_tokenizer` (a tokenizer that knows control tokens by secret names only).

May import `model_output.formats`, and of the router `request`.
"""
