"""A prefill worker: `build` gives it the sender's side of the handoff, and nothing else."""
