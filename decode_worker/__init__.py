"""A decode worker, which fetches KV, and hands it on when it leaves.

build          puts both sides of the handoff together
receiver_side  fetches and verifies the blocks that the engine has reserved
sides          the receiving and the sending side as one
"""
