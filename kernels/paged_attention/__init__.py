"""The parts that `paged_decode` and `chunked_prefill` share.

arguments  their common arguments, and the checks of these
kernel     the loop over a tile's KV
reference  attention of one sequence in plain PyTorch
"""
