"""Simulated runs for claims. `settings`: seeds and durations; `cells`: workloads and promises; `play`: one
simulation and its columns; `search`: the highest rate at which something holds; `tasks`: many runs on all
cores.
"""
