"""Combining the sums over spans of a row's context, for use inside attention kernels: `kernel`."""
