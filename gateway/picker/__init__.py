"""The endpoint picker: a fleet's gateways behind an inference gateway.

A proxy that follows the Gateway API Inference Extension, such as Envoy, asks for each HTTP request which pod
serves it. In reading order:

- `__main__`, `config`: flags, start and drain.
- `service`: one request of the proxy's, from its head to the answer; `convert`: the proxy's messages.
- `decision`: a gateway, or the response that the caller gets instead: what the fleet would refuse, found out
  by a quote.
- `pool`: the gateways that serve.
- `metrics`: what was decided.

May import what `gateway` may. Nothing here is on the way of a response, unless the proxy sends
response bodies FULL_DUPLEX_STREAMED.
"""
