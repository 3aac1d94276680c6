"""The engine beside the limits of a GPU: `python -m benchmarks.gpu`. In reading order:

- `setting`: sizes, model, engine and timing that sections share; `anchors`: figures of vLLM, and goals
- `ceilings`: the limits of the device; `correctness`: kernels against their references, on `cases`
- `kernel_times`, `offline`, `variants`: kernels, the engine alone, and its other modes
- `fleet`, `handoff`: processes on one device
"""
