"""Processes: `process` (start and watch one), `group` (all of a fleet), `reaper` (end them in any case)."""
