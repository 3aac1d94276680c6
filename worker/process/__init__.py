"""A worker as a process, from its command line to its last word.

command         reads the flags, checks the environment, starts the other processes of the worker, runs
starting        reports the progress of the start
main            builds the worker, serves, and ends it
registration    announces the worker and its prefixes through Redis
prefix_changes  the blocks that it has yet to announce, from one tier
"""
