"""Row-invariant products under transformers' code.

While the mode is active, what torch is asked to multiply with a matrix goes through the reference
kernels, in which a row has the same bits whatever other rows there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from penstock_kernels import reference as ops
from penstock_kernels.reference.linear import ALIGNMENT

DTYPES = (torch.float32, torch.bfloat16)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Does what torch.nn.functional.linear does: `x` is [..., inputs], `weight` [outputs,
    inputs]."""
    if weight.dim() != 2 or x.dtype != weight.dtype or x.dtype not in DTYPES:
        return functional.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    if not rows.shape[0]:
        return functional.linear(x, weight, bias)
    return ops.linear(rows, _aligned(weight), bias).view(*x.shape[:-1], -1)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Does what torch.matmul does, a matrix of `right` at a time."""
    if left.dim() < 2 or right.dim() < 2 or left.shape[-1] == 1:
        return torch.matmul(left, right)  # Without a sum over columns there is no order of it.
    if right.dim() == 2:
        return linear(left, right.t())
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    lefts = left.expand(*batch, *left.shape[-2:]).reshape(-1, *left.shape[-2:])
    rights = right.expand(*batch, *right.shape[-2:]).reshape(-1, *right.shape[-2:])
    products = [linear(one, other.t()) for one, other in zip(lefts, rights, strict=True)]
    if not products:
        return torch.matmul(left, right)
    return torch.stack(products).view(*batch, *products[0].shape)


def addmm(
    added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Does what torch.addmm and torch.baddbmm do."""
    return beta * added + alpha * matmul(left, right)


def _matmul_of(right: Tensor, left: Tensor) -> Tensor:
    return matmul(left, right)


def _aligned(weight: Tensor) -> Tensor:
    if weight.is_contiguous() and weight.data_ptr() % ALIGNMENT == 0:
        return weight
    return weight.clone(memory_format=torch.contiguous_format)


_PRODUCTS: dict[Any, Callable[..., Tensor]] = {
    functional.linear: linear,
    torch.addmm: addmm,
    torch.Tensor.addmm: addmm,
    torch.baddbmm: addmm,
    torch.Tensor.baddbmm: addmm,
    torch.Tensor.__rmatmul__: _matmul_of,
    **dict.fromkeys(
        (
            torch.matmul,
            torch.Tensor.matmul,
            torch.Tensor.__matmul__,
            torch.mm,
            torch.Tensor.mm,
            torch.bmm,
            torch.Tensor.bmm,
        ),
        matmul,
    ),
}


class RowInvariant(TorchFunctionMode):
    """A context, for one thread, in which products are those above."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        return (func if "out" in kwargs else _PRODUCTS.get(func, func))(*args, **kwargs)
