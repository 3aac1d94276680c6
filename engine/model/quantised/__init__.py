"""Models whose weights are kept in 8 or 4 bits.

quantisation        the setting that says what is kept in 8 bits
checkpoint          which quantised checkpoints are served
stored_linears      reads their weights
gguf_file           finds GGUF files, without loading torch
gguf_weights        loads their tensors
gguf_blocks         reads the whole numbers in them
rounding            makes whole numbers of other checkpoints' weights
kept_numbers        takes what an earlier start has made of them
whole_linears       linear layers with such weights
"""
