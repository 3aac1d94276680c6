"""The whole fleet under one scheduler: production code on a simulated clock, network and store.

A run is one number. It decides on the shape of a fleet, what its callers ask for, and which faults strike
when; the same number gives the same run, event for event. Promises are checked as it goes. A run that breaks
one is made smaller (fewer faults, requests and processes), printed with the command that replays it,
and checked in under `found/` once its fault is mended.

scenario     a run as data, drawn from a seed or read from a file
faults       the kinds of faults, and how they strike
fleet        the processes of a run, their restarts, and how they find each other
promises     what is checked, after which event
run          plays a scenario to its end
record       what a page shows of a run, noted while it plays
coverage     which faults struck whom, in which phase of a request
minimise     makes a failing scenario smaller
page         a run as a page: lanes, messages, faults, and the promise that broke (`page.html`)
__main__     `make dst`: many seeds on all cores

`world/` is what processes run on, `nodes/` what they are. So far routers and workers are cores with some of
their shells; any code on asyncio can take the place of a node.
"""
