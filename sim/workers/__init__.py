"""Simulated workers: the engine's own core, with steps that take time and compute nothing.

Read: `worker` (commands, and one worker's turns), `stepping` (one step at a time) and `pipeline` (several
stages), `outcomes` (what steps do to sequences), `counted_pool` (memory in counts), `step_record` (when steps
ended), `reporter` (what routers hear), `handoff` (KV between workers). Of the engine it imports `engine.core`
alone.
"""
