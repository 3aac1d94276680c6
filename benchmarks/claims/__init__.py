"""Claims about scheduling, measured in simulation one by one: `python -m benchmarks claims`.

`command` runs them: `grid`, `strict_itl`, `overload`, `refusals`, `paths`, `classes`, `slow_spell` and
`speed` are one claim each, with a function that measures and one that makes the section. They share `cells`,
which are workloads under promises; `play`, which simulates a case; and `lab`, which does so with every seed
on all cores, and searches for the highest rate. They import the simulator, `scheduling`, and their
`sim.workloads` and `sim.reporting`.
"""
