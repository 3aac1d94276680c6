"""OpenAI's API.

In reading order:

- `schema`: the requests as clients send them; `convert`: to the SDK's types, chats with their tools and
  calls too, and names of fields back.
- `endpoints`: the routes; `responses`: generations, whole or in chunks; `shapes`: a chat's and a text's, and
  what both have: events, finish reasons and usage.
"""
