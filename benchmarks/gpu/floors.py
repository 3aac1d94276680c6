"""How fast a device could be, by its own measured ceilings.

All functions assume that each weight and each token's KV is read once a step, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.gpu.sizes import FLOPS_PER_WEIGHT, ModelShape


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The ceilings measured on this device in this run; bytes and floating-point operations per second."""

    read: float
    copy: float
    """Bytes read plus bytes written."""
    matrix: float
    to_host: float
    from_host: float


def decode_step_s(shape: ModelShape, ceilings: Ceilings, sequences: float, context: float) -> float:
    """Return the floor of a step of one token for each of `sequences` with `context` tokens each."""
    read = shape.weights * shape.element_bytes / ceilings.read
    compute = FLOPS_PER_WEIGHT * shape.weights * sequences / ceilings.matrix
    return max(read, compute) + sequences * context * shape.kv_bytes_per_token / ceilings.read


def prefill_s(shape: ModelShape, ceilings: Ceilings, tokens: int) -> float:
    """Return the floor of a prompt: weights and causal attention at the matrix rate; logits of its last token
    only.
    """
    num_weights = shape.weights - shape.hidden * shape.vocab
    return (FLOPS_PER_WEIGHT * num_weights * tokens + shape.attention_flops(tokens)) / ceilings.matrix


def steady_rate(
    shape: ModelShape, ceilings: Ceilings, prompt: float, output: float, prefill: float, tpot_s: float
) -> float:
    """Return the most requests per second in a steady state in which no TPOT is above `tpot_s`.

    `prompt` and `output` are mean lengths, `prefill` the mean seconds of a prompt. Prompts take their share
    of the time; in the rest, B sequences at a time decode, B = rate · output · TPOT (Little's law).
    """
    running = output * tpot_s
    """Sequences, for each request per second; as `decode_step_s`, a step is limited by reads or products."""
    kv_s = running * (prompt + output / 2) * shape.kv_bytes_per_token / ceilings.read
    compute_s = running * FLOPS_PER_WEIGHT * shape.weights / ceilings.matrix
    read_s = shape.weights * shape.element_bytes / ceilings.read
    by_reads = (tpot_s - read_s) / (kv_s + prefill * tpot_s)
    by_products = tpot_s / (compute_s + kv_s + prefill * tpot_s)
    return max(0.0, min(by_reads, by_products))
