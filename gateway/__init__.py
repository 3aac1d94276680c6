"""The HTTP APIs of fleets: a process beside the routers, and itself a gRPC client of any of them.

In reading order:

- `__main__`, `config`: flags, TLS, start and drain; `app`: the routes.
- `serving`: what all APIs share, from connections and bodies to the fleets' clients and errors.
- `openai`: `/v1/models`, `/v1/completions`, `/v1/chat/completions`, `/tokenize` and `/detokenize`.
- `responses`: `/v1/responses`, and those that are stored.
- `anthropic`: `/v1/messages` and `/v1/messages/count_tokens`.
- `page`: what people with a browser see.
- `picker`: another program, which chooses a gateway for each request behind an inference gateway.
- `batches`: `/v1/files` and `/v1/batches`, and what runs them.

May import the SDK (`baton`), `runtime`, but never a router's or a worker's code, nor torch.
"""
