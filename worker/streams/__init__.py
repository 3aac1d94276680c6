"""The streams between a worker and its routers.

server   the gRPC server of a worker
service  one long-lived stream to each router
hub      checks commands against fences, and splits each step's report among routers
routers  what waits to be written to each router, and the sequences that run for it
convert  commands and reports to and from the protocol
sequence_spans  what of its sequences is traced
probes   answers routers over UDP while the event loop is busy
"""
