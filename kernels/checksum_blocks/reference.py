"""The reference of `checksum_blocks` in plain PyTorch.

A block is n 32-bit words w, lowest byte first. Multilinear hashing (Lemire & Kaser, "Strongly universal
string hashing is fast", 2014), twice with multipliers of its own, as the lower half of such a sum is weak:

    sum_k    = Σ_i m(2 i + k) · w_i  mod 2⁶⁴                    k = 0, 1
    checksum = upper half of sum_1, upper half of sum_0

Were m random, two different blocks would have the same checksum with probability 2⁻⁶⁴. Here m(j) is the j-th
output of SplitMix64 (Steele, Lea & Flood, 2014) from 0, the same for everybody: enough against accidents, of
no use against a forger. Sums have no order, so programs and threads may add their parts as they come.
"""

import torch
from torch import Tensor

LOW_32 = 0xFFFF_FFFF


def checksum_blocks_reference(pool: Tensor, block_ids: Tensor) -> Tensor:
    """Arguments and result as for `kernels.checksum_blocks.checksum_blocks`."""
    words = pool.flatten(1)[block_ids].view(torch.int32).to(torch.int64) & LOW_32
    places = torch.arange(words.shape[1], device=pool.device)
    low, high = ((words * _multipliers(2 * places + lane)).sum(-1) for lane in (0, 1))
    return upper_halves(low, high)


def upper_halves(low: Tensor, high: Tensor) -> Tensor:
    """The checksum of two sums; any shape, int64 as bits."""
    return (high & ~LOW_32) | ((low >> 32) & LOW_32)


def _multipliers(places: Tensor) -> Tensor:
    """Return SplitMix64's outputs as int64, whose products wrap like those of unsigned numbers."""
    mixed = (places + 1) * _signed(0x9E37_79B9_7F4A_7C15)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D0_49BB_1331_11EB)
    return mixed ^ _shifted(mixed, 31)


def _shifted(numbers: Tensor, by: int) -> Tensor:
    """To the right, zeros moving in."""
    return (numbers >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64)
