"""Real fleets under load. In reading order:

- `targets`: the fleets that are compared; `doors`: sending a request by gRPC or HTTP; `load`: sending many;
  `metrics`: their records and summary; `observe`: metrics that the fleet reports meanwhile; `reference`:
  the units of promises and loads
- `bench`: a workload at a rate under several policies; `recorded`: its routers' event logs
- `gateway`: what HTTP costs beside gRPC
- `fidelity`: the simulator against a live fleet, with the overheads of `calibration`; `travel` is the way
  of commands
"""
