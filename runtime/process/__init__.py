"""The life of a process: `log` (no caller waits for a disk), `reports` (to its launcher), `event_loop`,
`standstill`, `watchdog`, `threads`, `limits` (its cores and memory), `topology` (which cores are as fast as
the fastest), `processor` (its name), `metric_names` (those that
other projects' tools look for), `clock` (how far it is off). Imports nothing else of the project.
"""
