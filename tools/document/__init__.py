"""Generates the documents that list what the code defines.

`configuration` reads every parser of a command line, `metrics` every registry of metrics. `make docs` writes
both; a test compares what is written with what would be.
"""
