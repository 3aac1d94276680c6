"""The OpenAI API.

In reading order:

- `schema`: the requests as clients send them; `convert`: to the SDK's types, and names of fields back.
- `chat`, `completions`: the two kinds of generations, whole or streamed; `choices`: what both say of tokens.
- `models`: models, tokenize and detokenize; `problems`: errors in this API's shape.
"""
