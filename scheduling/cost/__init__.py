"""The costs of steps. In reading order:

- `cost_model`: the formula; `cost_fit`: fitting it to measured steps; `cost_estimator`: a worker's running
  estimate, from its recent steps (`step_record`)
- `profiles`: a worker's costs and sizes as a JSON file

The package may import only `scheduling` and `numpy`.
"""
