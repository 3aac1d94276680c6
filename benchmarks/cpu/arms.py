"""The arms that are compared: for each format of weights, Baton's ways to keep them, and other engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from benchmarks.cpu.engines import peers
from benchmarks.cpu.engines.baton_engine import baton
from benchmarks.cpu.engines.loads import Load, Played
from benchmarks.cpu.engines.process_engine import Setting


class Engine(Protocol):
    """A running engine."""

    async def play(self, load: Load, prompts: Sequence[Sequence[int]]) -> Played:
        """Compute the prompts, all sent at once. Raises NotMeasured if the engine has ended."""


Start = Callable[[Setting], AbstractAsyncContextManager[Engine]]


@dataclass(frozen=True, slots=True)
class Bits:
    """Bits of a weight, with its share of scales and zeros; None for those of the setting's dtype."""

    layers: float | None = None
    head: float | None = None
    """Those of the last product."""


@dataclass(frozen=True, slots=True)
class Arm:
    """An engine with weights and KV of certain formats. `exact` computes the same weights in float32."""

    name: str
    start: Start
    exact: Start
    bits: Bits = Bits()
    is_own: bool = False


AS_STORED = peers.rounded_by_baton
"""The weights of the checkpoint in float32."""


def _baton(quantisation: str, exact: Start, bits: Bits) -> Arm:
    name = "Baton" if quantisation == "none" else f"Baton {quantisation}"
    return Arm(name, partial(baton, quantisation=quantisation), exact, bits, is_own=True)


def _batons(weights: str, layer_bits: float) -> tuple[Arm, ...]:
    """Return the arms for weights of 8 or 4 bits: the last product in floats as by default, or in 8 bits."""
    exact = partial(peers.rounded_by_baton, quantisation=weights)
    whole = f"{weights}+logits8"
    exact_whole = partial(peers.rounded_by_baton, quantisation=whole)
    return (
        _baton(weights, exact, Bits(layer_bits)),
        _baton(f"{weights}+kv8", exact, Bits(layer_bits)),
        _baton(f"{whole}+kv8", exact_whole, Bits(layer_bits, 8)),
    )


def _openvino(weights: str, bits: Bits) -> tuple[Arm, ...]:
    name = "OpenVINO" if weights == "float" else f"OpenVINO {weights}"
    exact = AS_STORED if weights == "float" else partial(peers.openvino, weights=weights, is_exact=True)
    return (
        Arm(name, partial(peers.openvino, weights=weights), exact, bits),
        Arm(f"{name}+kv8", partial(peers.openvino, weights=weights, kv="u8"), exact, bits),
    )


def _llama_cpp(form: str, layer_bits: float) -> Arm:
    exact = partial(peers.read_from_gguf, form=form)
    return Arm(f"llama.cpp {form}", partial(peers.llama_cpp, form=form), exact, Bits(layer_bits, 8.5))


FORMATS: dict[str, tuple[Arm, ...]] = {
    "float": (
        _baton("none", AS_STORED, Bits()),
        _baton("kv8", AS_STORED, Bits()),
        Arm("transformers", peers.transformers, AS_STORED),
        *_openvino("float", Bits()),
    ),
    "int8": (*_batons("int8", 8), *_openvino("int8", Bits(8, 8)), _llama_cpp("Q8_0", 8.5)),
    # Of 64 inputs that share 64 bits, of 128 that share 20, and of 32 that share 16.
    "int4": (*_batons("int4", 5), *_openvino("int4", Bits(4.16, 8)), _llama_cpp("Q4_0", 4.5)),
}
