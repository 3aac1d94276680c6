"""Generate the documents that list what the code defines.

`configuration` reads every parser of a command line, `metrics` every registry of metrics. `make docs` writes
both, with the tables of `markdown`; a test compares what is written with what would be.
"""
