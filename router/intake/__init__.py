"""From a request as received to one that the core can take.

In reading order: `sizes` (lists and prompts are short enough), `validation` (every field is in its range),
`preprocessor` (checks, tokenises and hashes), `helpers` (the processes that tokenise and render chats),
`grammar_compiler` (output formats, tenants in turns), `model_facts` (the model's limits), `prefix_lookup`
(which workers have a prompt's beginning).

May import `model_output`, `runtime` and `scheduling`, and of the router all but `api` and
`auth`.
"""
