"""Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`.

In reading order:

- `schema`: the requests as clients send them; `convert`: to the SDK's types, chats with their tools and
  calls too, and names of fields back.
- `responses`: whole messages and events; `endpoints`: the routes, and errors in this API's shape.
"""
