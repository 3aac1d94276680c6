"""The fleet on a simulated clock: the router's own core, with no real waiting. In reading order:

- `spec`: what is simulated, and `workload`: the trace to play
- `requests`: what each request asks for, and what became of it; `sequence`: one of them at a worker
- `clock`; `delays`: how long messages take; `step_times`: how long steps take
- `play`: all parts put together; `workers`: the workers; `store`: the shared state without Redis
- `result`: what came of it, and `metrics`: its figures; `bubbles`: how long stages of a pipeline are idle
- `workloads`: requests to offer; `reporting`: tables, plots and pages, which benchmarks use too
- `commands`: `baton simulate` and `baton plan`

`run(SimSpec(...))` plays a trace and returns a `SimResult`; `measure` computes its metrics. The package may
import `router`, `engine.core`, `runtime` and `scheduling`.
"""
