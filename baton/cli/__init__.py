"""The command line.

In reading order: `arguments` (the commands), `request_flags` and `values` (their flags), `commands` (what
they do), `views` (what they print), `target` (the fleet that they call), `forwarding`
(reaches one in a cluster), `exits` (errors and exit codes).

May import the SDK and `baton.fleet`.
"""
