"""A decode worker: `worker`, in the role that fetches KV and generates, and hands KV on when it leaves.

sides          the sides of the handoff that it has
receiver_side  fetches and verifies the blocks that its engine has reserved
"""
