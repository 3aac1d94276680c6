"""Random tensors, and how those that ops return are compared."""

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32)
MARGIN = 8


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def among_nan(tensor: Tensor) -> Tensor:
    """The same as a view, before and after each of whose rows lies NaN."""
    *rows, size = tensor.shape
    wide = torch.full((*rows, size + 2 * MARGIN), torch.nan, dtype=tensor.dtype)
    view = wide[..., MARGIN : MARGIN + size]
    view.copy_(tensor)
    return view


def around(view: Tensor) -> Tensor:
    """Return the values around a view that `among_nan` made."""
    wide = view.as_strided((*view.shape[:-1], view.shape[-1] + 2 * MARGIN), view.stride(), storage_offset=0)
    return torch.cat((wide[..., :MARGIN], wide[..., -MARGIN:]), dim=-1)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def assert_close(got: Tensor, want: Tensor, *, eps: float, atol: float = 0.0) -> None:
    """Within `eps` units of the dtype's precision, relative to what is wanted."""
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=eps * torch.finfo(want.dtype).eps, atol=atol)
