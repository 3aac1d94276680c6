"""The processes of a worker that has several, before they serve.

followers   processes that this one has forked, which end with it
hosts       the place of this process among those that a cluster has started
gpus        the GPU of each process
rendezvous  connects processes that share no memory
"""
