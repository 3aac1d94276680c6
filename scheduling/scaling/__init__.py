"""How many workers a fleet needs. In reading order:

- `demand`: what was asked of the fleet lately, in sums over slots of time
- `steady`: the share of requests that a number of workers keeps its promises to, under a steady load
- `steady_span`: how long the load has been steady
- `need`: the fewest workers that are enough, prefill and decode apart
- `search`: the fewest that hold, by any judge; `baton plan` judges by simulations

The package may import only `scheduling`.
"""
