"""The engine of prefill and decode workers: the model, its KV cache, batches, sampling and the step loop.

In reading order:

    building     puts an engine together from its settings
    starting     the phases of a start, as an engine reports them
    errors       what can go wrong while an engine is built
    core         which sequences run in the next step, and which blocks they hold
    device       copies between host and device
    kv           the memory of KV blocks, and how blocks are copied, swapped, summed up and shared
    sampling     how the next token of each row is drawn
    speculation  drafts of tokens that are yet to be drawn
    model        loading a model, and its attention over the KV blocks
    group        steps that several processes compute together
    execution    one step: launched, replayed from graphs, post-processed, in a loop
    calibration  block counts, step costs and determinism, found out before the first request
    proof        shows that a model off the list computes what transformers does

Imports run one way: building → proof → calibration → group → execution → model → kv → device → core.
`building` and `execution` also import `sampling` and `speculation`, which import `device` and `core`. Every
room but `core` may import `errors`, `starting` and `kernels`; none imports a service.
"""
