"""A worker before it serves.

command      parses the flags, reports the start, runs
preflight    checks of the environment and of the fleet
starting     reports the progress of the start
build        builds the engine that the flags ask for
sweep_cache  keeps what steps cost for the next start
stall_limit  how long a step may last
signals      SIGTERM and SIGINT
"""
