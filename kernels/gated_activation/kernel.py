"""The elementwise part of a gated MLP.

    out[t, i] = act(gate_up[t, i]) · gate_up[t, size + i]        in float32, rounded once

gate_up [num_tokens, 2 · size], as one product with the merged weights gives it; out [num_tokens, size].
act: silu(x) = x · σ(x); gelu(x) = x · Φ(x); gelu_pytorch_tanh, its approximation (Hendrycks and Gimpel 2016)
½x · (1 + tanh(√(2/π) · (x + 0.044715 x³))), which is x · σ(2√(2/π) · (x + 0.044715 x³)).
"""

import torch
from torch import Tensor

from kernels.gated_activation.reference import ACTIVATIONS, gated_activation_reference
from kernels.language import tl, triton
from kernels.launch import FLOAT_DTYPES, can_launch, check_tensor
from kernels.native import ops as native

# Bound by memory. A thread has two loads of 16 bytes (in 16 bits) in flight, and even one token of a wide MLP
# is spread over a dozen programs.
TILE = 1024
NUM_WARPS = 4


@triton.jit
def _gated_activation_kernel(
    gate_up_ptr, out_ptr, stride_token, SIZE: tl.constexpr, ACTIVATION: tl.constexpr, TILE: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = cols < SIZE
    source = gate_up_ptr + token * stride_token + cols
    gate = tl.load(source, mask=real, other=0.0).to(tl.float32)
    up = tl.load(source + SIZE, mask=real, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        active = gate * tl.sigmoid(gate)
    elif ACTIVATION == "gelu_pytorch_tanh":
        active = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))  # 2√(2/π)
    else:
        tl.static_assert(ACTIVATION == "gelu")
        active = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    tl.store(out_ptr + token * SIZE + cols, active * up, mask=real)


def gated_activation(gate_up: Tensor, activation: str) -> Tensor:
    """Return act(gate) · up, contiguous, for gate = gate_up[:, :size] and up = gate_up[:, size:].

    `activation` is "silu", "gelu_pytorch_tanh" or "gelu". float64 is computed by the reference.
    """
    check_tensor("gate_up", gate_up, ("num_tokens", "2 · size"), FLOAT_DTYPES)
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up has {gate_up.shape[1]} columns; accepted: an even number, gate before up")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; accepted: {', '.join(ACTIVATIONS)}")
    if gate_up.dtype == torch.float64 or not can_launch(_gated_activation_kernel, gate_up.device):
        if native.supports(gate_up):
            return native.gated_activation(gate_up, activation)
        return gated_activation_reference(gate_up, activation)
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        _gated_activation_kernel[num_tokens, triton.cdiv(size, TILE)](
            gate_up,
            out,
            gate_up.stride(0),
            SIZE=size,
            ACTIVATION=activation,
            TILE=TILE,
            num_warps=NUM_WARPS,
        )
    return out
