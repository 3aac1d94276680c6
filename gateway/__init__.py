"""The HTTP APIs of a fleet: a process beside the routers, and itself a gRPC client of any of them.

In reading order:

- `__main__`, `config`: flags, TLS, start and drain; `app`: the routes.
- `fleet`: the fleet's client, which acts with each caller's own credential.
- `bodies`, `streaming`: bounded JSON requests in, event streams out, and a caller who leaves.
- `errors`: what every API says of an error, before the API's own shape.
- `openai`: `/v1/models`, `/v1/completions`, `/v1/chat/completions`, `/tokenize` and `/detokenize`.

May import the SDK (`baton`) and `services`; knows neither a router's nor a worker's code, and never torch.
"""
