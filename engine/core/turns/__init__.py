"""A worker's turns: commands and finished steps in; steps, copies and reports out.

Read: `worker_core`. Only the simulator uses `simulated_runs` (many decode steps at once). Nothing else of
`engine.core` imports these.
"""
