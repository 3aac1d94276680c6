"""Measurements, one command each: `python -m benchmarks`. In reading order:

- `__main__`: all commands; `flags`: what their command lines share; `report`: how they report
- `doors`: how load reaches a fleet, and what is recorded of it
- `claims`: what is claimed about scheduling, in simulation; `programs`: the same of agents' programs
- `rivals`: all policies beside one another, in simulation
- `fleets`: real fleets under load; `crowds`: fleets under more than they carry, or for long
- `peers`: the frontends of others, in turns with Baton's; `router_cost`: where the costs of Baton's are
- `cpu`: the engine and a fleet on a CPU, beside other engines and beside the limits of the machine
- `costs`: single steps and decisions, timed in one process; `decodes`: requests for engines without a fleet
- `start`: the way from a bare clone to the first streamed token
- `gpu`: the engine beside the limits of a GPU, with its own command
- `plot`: a page from the JSON of measurements

`tests/house/walls.py` lists what the package may import. Only `tools` imports it, and `baton bench` starts
it.
"""
