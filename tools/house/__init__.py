"""Measures the structure of the code: `python -m tools.house`, or `make house`.

Read in this order:

    source_tree     the project's files, what each of them imports, and how long it is
    folders         modules of each folder, and whether the folder's docstring names them
    circles         imports that run in a circle, between modules and between folders
    names           variables that are called by a bare participle, such as `found`
    request_path    the functions that one request runs through in the router core
    live_path       the files that a chat touches in the processes of a live fleet, which `hook` records

`__main__` prints all of it but two: `python -m tools.house.names` counts the names, and `python -m
tools.house.live_path` starts a fleet and uses the SDK. The others import the router core, the simulator,
which runs the request, and nothing that needs torch.
"""
