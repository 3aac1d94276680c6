"""A prefill worker: `worker`, in the role that computes prompts and sends their KV.

sides  the sides of the handoff that it has
"""
