"""The doors by which load reaches a fleet, gRPC and HTTP, and what is recorded of it. In reading order:

- `http`: the client of a gateway; `plain`: one that costs next to nothing
- `sending`: a request sent by either door, and the record of it; `metrics`: a summary of such records
- `observe`: metrics that a fleet and its processes report meanwhile
- `arms`: running fleets of comparisons, and what each did under a load
"""
