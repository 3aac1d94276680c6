"""One step after another: planned, launched, computed, post-processed and reported.

    step_loop       what happens between two steps, and in which order
    launcher        puts a step on the device
    flight          a launched step whose tokens are not known yet
    model_runner    one forward pass over the KV pool
    decode_graphs   steps of decodes alone, recorded and replayed
    cuda_graphs     how they are recorded on a GPU
    postprocessing  what happens to sequences once a step's tokens are known

Of the engine it imports all rooms but `engine.calibration`.
"""
