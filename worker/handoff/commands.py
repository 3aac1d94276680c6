"""The commands of a router that start a sequence: those of the engine, with the router's handle in `spec`."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.commands import Decode, Prefill, Receive


@dataclass(frozen=True, slots=True)
class ReceiveFrom(Receive):
    """Receive a sequence from the worker whose KVTransferService listens at `source_address`."""

    source_address: str = ""


StartCommand = Prefill | Decode | ReceiveFrom
START_NAMES: dict[type[StartCommand], str] = {Prefill: "prefill", Decode: "decode", ReceiveFrom: "receive"}
"""Their names in the protocol."""
