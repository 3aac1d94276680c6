"""The fleet on a simulated clock: the router's own core, with no real waiting. In reading order:

- `spec`: what is simulated, and `workload`: the trace to play; `simulation` puts all parts on one `clock`
- `requests`: what each request asks for, and what became of it
- `delays`: how long messages take; `shell`: carries out the router core's actions; `store`: the shared state
  without Redis; `workers`: the workers
- `result`: what came of it, and `metrics`: its figures; `bubbles`: how long stages of a pipeline are idle
- `workloads`: requests to offer; `reporting`: tables, plots and pages, which benchmarks use too
- `commands`: `baton simulate` and `baton plan`

`run(SimSpec(...))` plays a trace and returns a `SimResult`; `measure` computes its metrics. The package may
import `router`, `engine.core`, `runtime` and `scheduling`.
"""
