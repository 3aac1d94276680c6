"""The engines that are compared.

- `loads`: what each of them is given
- `baton_engine`, `process_engine`: a fleet, and an engine in a process of its own
- `serving`: the loop of such a process; `transformers_process`, `openvino_process`: its engines
"""
