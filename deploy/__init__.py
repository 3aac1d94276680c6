"""Programs and charts for clusters.

`controller` advances rollouts and scale-downs of worker pools on Kubernetes. `helm/` is the chart.
"""
