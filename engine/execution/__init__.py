"""One step after another, as `engine.core` plans them: launched, computed, post-processed and reported.

    step_loop      what happens between two steps, and in which order
    launcher       puts a step on the device
    device_rows    what the model needs of each running row, and the step's tensors made from it
    drafting       tokens that are drafted, and verified in one step
    draft_model    a smaller model that drafts them
    flight         a launched step, and what happens to sequences once its tokens are known
    stages         what computes steps: a runner, or the stages of a pipeline
    model_runner   one forward pass of a model over the KV pool
    decode_graphs  steps of decodes alone, recorded and replayed

Of the engine it imports `core`, `device`, `errors`, `kv`, `model`, `sampling` and `speculation`.
"""
