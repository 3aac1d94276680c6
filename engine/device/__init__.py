"""Copies between the host and a device, beside the steps or within one.

    copy_stream  a stream of its own for copies beside the steps, and marks to order them by
    host_copies  the copies of a step: inputs up in one piece, results down without spinning

Of the engine it imports `engine.core.report`, for the type of a mark.
"""
