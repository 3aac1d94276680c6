"""The processes of a worker that has several, before they serve.

followers   processes that this one has forked, which end with it
gpus        the GPU of each process
rendezvous  connects processes that share no memory
"""
