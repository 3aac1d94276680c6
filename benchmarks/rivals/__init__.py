"""All policies beside one another, on made workloads and recorded traffic: `python -m benchmarks rivals`.

`command` plays them. `situations` is what is offered, `conversations` draws one kind of it, `cases` is one
run and its figures, `runs` is the file of all runs, from which the next call goes on, and `tables` and
`plot` show it. They import the simulator, `scheduling`, `sim.workloads` and `sim.reporting`, and from
`claims` the profile and the promises of classes.
"""
