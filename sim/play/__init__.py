"""A simulation as a whole.

`simulation` puts all parts on one clock and plays the trace; `shell` carries out the router core's actions.
`all_cores` plays several simulations at once.
"""
