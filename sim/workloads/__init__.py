"""Workloads: the requests that a fleet is offered. Pure functions that draw from seeds. In reading order:

- `shapes`: lengths and arrival times; `slo`: promises as ratios of times without load
- `trace`: requests as JSON lines, and their figures

The package may import only `scheduling`. Benchmarks and the simulator use it.
"""
