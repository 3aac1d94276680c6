"""Processes of one host that compute parts of the same layers. The structure is that of ops.h."""

from __future__ import annotations

import ctypes
from ctypes import byref

import torch

from kernels.native.ops import call, fields


class Group(ctypes.Structure):
    """One process's view of the memory that they share; native ops count its meetings.

    arrived, sleeping  addresses of 4 bytes each, 0 at first, of which nothing else is in the same cache line
    slots              address of [2, size, slot_bytes], which are used in turns
    rank, size         this process's place, and their number
    turn               the slots that are used next, 0 or 1
    """

    slot_bytes: int
    turn: int
    _fields_ = fields(pointers="arrived sleeping slots", sizes="slot_bytes rank size turn meetings")

    def meet(self) -> None:
        """Wait until all processes have come here, and see what they wrote before."""
        call("baton_meet", torch.float32, byref(self), work=0)
