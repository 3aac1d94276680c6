"""Generate the documents that list what the code defines.

`configuration` reads every parser of a command line, `metrics` every registry of metrics, and `contract` the
comments of the `.proto` files. `make docs` writes a page of each, with the tables of `markdown`; a test
compares what is written with what would be.
"""
