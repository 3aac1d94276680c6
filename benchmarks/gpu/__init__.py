"""The engine beside the limits of a GPU: `python -m benchmarks.gpu`. In reading order:

- `sizes`, `bench`, `timing`: the model, the state of a run, and its clock; `anchors`: vLLM's figures, and
  goals
- `ceilings`: the limits of the device; `floors`: the least times that follow from them
- `correctness`, `kernel_times`: the `kernel_calls` against their references, and beside their floors
- `offline`: the engine alone, and its other modes; `processes`: fleets on one device
"""
