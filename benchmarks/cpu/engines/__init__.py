"""The engines that are compared.

- `baton_engine`, `process_engine`: a fleet, and an engine in a process of its own
- `serving`: the loop of such a process; `transformers_process`, `openvino_process`: its engines
"""
