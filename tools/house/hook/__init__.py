"""Loaded by a process whose calls are recorded: Python imports `sitecustomize` at its start."""
