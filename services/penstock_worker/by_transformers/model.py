"""A model of transformers' as a step needs it: rows in, hidden vectors or logits out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from penstock.errors import UnsupportedModel
from penstock_kernels import reference as ops
from penstock_kernels.reference.linear import ALIGNMENT
from penstock_kernels.reference.tiling import padded_rows
from penstock_worker.by_transformers.paged import PagedStep, computing


class LibraryModel:
    """Read-only after it is made; may be used from several threads at once."""

    def __init__(self, model: Any, *, headless: bool) -> None:
        """`headless`: its layers alone, whose last norm is a part of them. Raises UnsupportedModel
        for a class that doesn't take position_ids."""
        self._model = model
        self._headless = headless
        known = inspect.signature(model.forward).parameters
        if "position_ids" not in known:
            raise UnsupportedModel(
                f"{type(model).__name__} of transformers counts positions itself, so sequences "
                "can't be computed together by it"
            )
        self._chooses = "logits_to_keep" in known

    def outputs(self, tokens: Tensor, positions: Tensor, step: PagedStep, rows: Tensor) -> Tensor:
        """Computes all of `tokens` at `positions`, each [count] int64; returns what comes of some
        `rows`, [n] int64: logits, [n, vocab] float32, or hidden vectors, [n, hidden].

        The tensors that the model's code sees have whole tiles of rows, and the last one is always
        padding: what torch computes at the end of a tensor may have other bits.
        """
        count, wanted = len(tokens), len(rows)
        missing = padded_rows(count + 1) - count
        kept = torch.nn.functional.pad(rows, (0, padded_rows(wanted + 1) - wanted))
        # In a rehearsal transformers makes masks, and takes a jump of positions for a new sequence.
        padding = torch.arange(missing) + count if step.rehearsal else torch.zeros(missing)
        chosen: dict[str, Any] = {}
        if self._chooses and not self._headless:
            chosen["logits_to_keep"] = kept
        with computing(step), RowInvariant():
            given = self._model(
                input_ids=torch.nn.functional.pad(tokens, (0, missing))[None],
                position_ids=torch.cat((positions, padding.to(positions.dtype)))[None],
                attention_mask=None,
                use_cache=False,
                return_dict=True,
                **chosen,
            )
        found: Tensor = given.last_hidden_state if self._headless else given.logits
        of_rows = found[0] if chosen else found[0][kept]
        return of_rows[:wanted] if self._headless else of_rows[:wanted].float()


# Row-invariant products under transformers' code.
#
# While the mode is active, what torch is asked to multiply with a matrix goes through the reference
# kernels, in which a row has the same bits whatever other rows there are.

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
