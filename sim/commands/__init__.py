"""`baton simulate` and `baton plan`. In reading order:

- `arguments`: the arguments and the load that both share, with `values` of flags; `recorded`: the load of a
  trace; `capacity`: what a fleet carries, by arithmetic
- `simulate`: policies side by side, as the `arms` of a comparison; `false_refusals` replays refused requests
- `plan`: the cheapest fleet for a load, found by `search`
- `run_rows`: runs as rows of JSON
"""
