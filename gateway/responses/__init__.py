"""OpenAI's Responses API: `/v1/responses`.

In reading order:

- `schema`: the requests as clients send them; `items`: the parts of a conversation, and the chat they form.
- `convert`: to the SDK's types, the fields that a response repeats, and names of fields back.
- `events`: the output as events and items; `draft`: one response in the making.
- `store`: responses that outlive their request, in Redis; `keeping`: one response's place there.
- `create`: from a body, which may refer to stored items, to a response; `endpoints`: the routes.
"""
