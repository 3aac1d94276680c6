"""Models whose weights are kept in 8 bits.

quantisation        the setting that says what is kept in 8 bits
checkpoint          which quantised checkpoints are served
compressed_tensors  reads their int8 weights
int8_weights        linear layers with int8 weights
"""
