"""The doors by which load reaches a fleet: gRPC, through the SDK, and OpenAI's API, through a gateway.

- `sending`: a request sent by either door, and the record of it
- `http`: the client of a gateway; `plain`: one that costs next to nothing
- `gateway`: what HTTP costs beside gRPC
"""
