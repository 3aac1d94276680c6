"""The processes of a simulated fleet.

client   a caller: the SDK over a transport of the simulated network
router   a router's core, its calls of the store, and its links to workers
links    a router's stream to one worker, and when a silent worker counts as lost
worker   a worker's hub, fences and both sides of the handoff
engine   a worker's core, with a memory that holds tokens in place of KV
store    Redis: the simulator's store, behind connections that break and time out
"""
