"""The streams between a worker and its routers.

server     the gRPC server of a worker
service    one long-lived stream to each router
session    what waits to be written to a router
hub        checks commands against fences, and splits each step's report among routers
sequences  the sequences that run here, and their handles on either side
commands   the commands of routers
convert    commands and reports to and from the protocol
probes     answers routers over UDP while the event loop is busy
"""
