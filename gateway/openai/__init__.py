"""OpenAI's API.

In reading order:

- `schema`: the requests as clients send them; `convert`: to the SDK's types, and names of fields back.
- `messages`: chats with their tools and calls.
- `endpoints`: the routes; `responses`: generations, whole or in chunks; `shapes`: a chat's and a text's.
- `choices`: events, finish reasons and usage.
- `models`: models, tokenize and detokenize.
"""
