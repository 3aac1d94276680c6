"""Selection among the tokens of a row by whole-number weights, for use inside other kernels: `kernel`."""
