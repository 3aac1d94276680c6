"""Inputs for comparing kernels with their references: a `case`, and those of `elementwise_cases`,
`vocabulary_cases` and `eight_bit_cases`.
"""
