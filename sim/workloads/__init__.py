"""Workloads: the requests that a fleet is offered. Pure functions that draw from seeds. In reading order:

- `shapes`: lengths and arrival times; `slo`: promises as ratios of times without load
- `agents`: programs, whose calls go on from one another under one deadline
- `trace`: requests as they came, the part of them that is played, and their figures; `formats`: the files
  that traces come in

The package may import only `scheduling`. Benchmarks and the simulator use it.
"""
