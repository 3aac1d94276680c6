"""How the costs of steps are measured. In reading order:

- `cost_fit`: fitting a cost model to measured steps; `cost_estimator`: a worker's running estimate, from its
  recent steps
- `profiles`: a worker's costs and sizes as a JSON file

The package may import only `scheduling` and `numpy`.
"""
