"""How many workers a fleet needs. In reading order:

- `demand`: what was asked of the fleet lately, in sums over slots of time
- `replay`: the share of those requests that a number of workers would have kept its promises to
- `need`: the fewest workers that would have been enough, prefill and decode apart
- `search`: the fewest that hold, by any judge; `baton plan` judges by simulations

The package may import only `scheduling`.
"""
