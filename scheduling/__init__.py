"""Every decision, pure; and the words that router, workers and simulator share.

No I/O, no clock, no randomness of its own, no logging: frozen snapshots and `now` come in, data goes out.
"""
