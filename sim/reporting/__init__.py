"""Reports of measurements, live or simulated. In reading order:

- `quantiles`, `results`: the figures of runs, and their JSON; `simulated` reads the simulator's
- `section`: claims with goals, as Markdown; `tables`: tables for a terminal
- `plots`, `timeline`, `page`: a page with plots; only these import matplotlib
- `machine`: facts about the machine; `progress`: progress bars

Of the other packages of the project, only `machine` imports one: `runtime`, for the processor's name.
"""
