"""Real fleets under load. In reading order:

- `targets`: the fleets that are compared; `load`: sending many requests; `reference`: the units of promises
  and loads
- `bench`: a workload at a rate under several policies; `recorded`: its routers' event logs
- `gateway`: what HTTP costs beside gRPC
- `fidelity`: the simulator against a live fleet, with the overheads of `calibration`; `travel` is the way
  of commands
"""
