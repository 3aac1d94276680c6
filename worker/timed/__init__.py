"""An engine whose steps last what a profile says and compute nothing: a fleet at an accelerator's speed.

Read: `timed_engine` (what a worker runs instead of a real engine), then `timed_runner` (steps that only take
their time). The package imports `engine`, `model_output`, `scheduling`, and of `worker` the configuration and
what a worker expects of an engine.
"""
