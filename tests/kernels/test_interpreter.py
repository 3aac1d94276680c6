import torch

from tests.kernels.interpreter import Interpreter
from tests.kernels.tensors import randn, same_bits


def test_a_dot_adds_its_terms_in_order_on_every_host(interpreter: Interpreter) -> None:
    x, weight = randn(70, 32), randn(70, 32, seed=1)  # 32 terms are one dot
    want = torch.zeros(70, 70)
    for term in range(32):
        want += x[:, term, None] * weight[None, :, term]
    assert same_bits(interpreter.run("invariant_linear", x, weight, None), want)
