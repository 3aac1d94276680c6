"""A fleet over a whole day, with workers that come and go. In reading order:

- `day`: the requests of a day, with bursts
- `hpa`: the decision of Kubernetes' HorizontalPodAutoscaler, and `arms`: what it is given to decide on
- `known`: an autoscaler that knows the day, to show what is left to gain
- `fleet`: workers that start, serve and drain; requests that are kept, refused or late
- `play`: a day under an arm, and what came of it

A day has hundreds of thousands of requests, so `fleet` simulates requests and not steps: prompts in a queue
by due time, and sequences that share the steps of their decode worker. `sim.simulation` is the judge of that
shortcut (`tests/sim/scaling/test_fleet.py`). May import `scheduling`, `sim` and `workloads`.
"""
