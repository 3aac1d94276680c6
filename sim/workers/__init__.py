"""Simulated workers: the engine's own core, with steps that take time and compute nothing.

Read: `worker` (one worker's turns), `sequence` (what the core does not know of a request), `counted_pool`,
`shared_names` and `swap` (memory in counts), `step_record` and `step_log` (when steps ended), `step_ends` and
`step_times` (how long steps take), `reporter` and `told` (what routers hear), `handoff` (KV between workers).
Of the engine it imports `engine.core` alone.
"""
