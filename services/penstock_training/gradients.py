"""The reference backend's operations with gradients. Each computes forward by the served code
itself, so that its bits are the served ones; backward, it is the derivative of the same formula in
plain torch, which promises no order of summation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.nn.functional import pad

from penstock_kernels import reference
from penstock_worker.attention.interface import PLAIN_RULE, HeadNorms, Rotation, ScoreRule
from penstock_worker.attention.reference import ReferenceStep, normalised_and_rotated
from penstock_worker.attention.whole_sequence import attended
from penstock_worker.layers.reference_ops import ReferenceOps
from penstock_worker.quantisation.interface import Product
from penstock_worker.sampler import Sampler
from penstock_worker.weights.weights import Matrix, plain

OnTensor = Callable[[Tensor], Tensor]


def _applied(function: Any, *arguments: Any) -> Tensor:
    """What a Function gives."""
    found: Tensor = function.apply(*arguments)
    return found


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return reference.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            grad @ weight if of_x else None,
            grad.t() @ x if of_weight else None,
            grad.sum(0) if of_bias else None,
        )


@dataclass(frozen=True)
class _LinearProduct:
    """Computes x @ weight.T + bias."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        # Without norms, x may be the residual, to which the layers add in place.
        return _applied(_Linear, x.clone(), self.weight, self.bias)


class _ElementWise(Function):
    """Computes `served`, whose exponentials may overflow on their way to a finite result; the
    gradient is that of `plain`, where they don't."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, served: OnTensor, plain: OnTensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.plain = plain
        return served(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            found = ctx.plain(given)
        return *torch.autograd.grad(found, given, grads[0]), None, None


_ACTIVATIONS: dict[str, OnTensor] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu2": lambda x: torch.relu(x).square(),
}


def capped(logits: Tensor, cap: float) -> Tensor:
    """The reference's soft_cap() with its gradient."""
    return _applied(
        _ElementWise,
        logits,
        lambda x: reference.soft_cap(x, cap),
        lambda x: cap * torch.tanh(x / cap),
    )


class GradientOps(ReferenceOps):
    """ReferenceOps with gradients. What is kept for the way back is a copy wherever it may be the
    residual, to which the layers add in place."""

    def product(self, weight: Matrix, bias: Tensor | None = None) -> Product:
        return _LinearProduct(plain(weight), bias)

    def head(self, weight: Matrix) -> Product:
        return _LinearProduct(plain(weight), None)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return super().rms_norm(x.clone(), weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.rms_norm(residual.add_(x), weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return super().layer_norm(x.clone(), weight, bias, eps)

    def activate(self, x: Tensor, kind: str, *, gated: bool, limit: float | None = None) -> Tensor:
        known, served = _ACTIVATIONS[kind], super().activate

        def plain(x: Tensor) -> Tensor:
            if not gated:
                return known(x)
            gate, up = x.chunk(2, -1)
            if limit is not None:
                return known(gate).clamp(max=limit) * up.clamp(-limit, limit)
            return known(gate) * up

        return _applied(_ElementWise, x, lambda x: served(x, kind, gated=gated, limit=limit), plain)


@dataclass(frozen=True)
class GradientAttention:
    """StepAttention of a single sequence, computed in one step."""

    step: ReferenceStep
    count: int
    """Tokens of the sequence. Rows beyond are padding."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rotation: Rotation | None,
        norms: HeadNorms | None = None,
        rule: ScoreRule = PLAIN_RULE,
    ) -> Tensor:
        query, key = normalised_and_rotated(query, key, rotation, norms)
        return _applied(_Attend, query, key, value, rule.sinks, self, layer, rule)


class _Attend(Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        attention: GradientAttention,
        layer: int,
        rule: ScoreRule,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, sinks)
        ctx.count, ctx.rule = attention.count, rule
        return attention.step.attend(layer, query, key, value, None, None, rule)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (grad,), (query, key, value, sinks), count = grads, ctx.saved_tensors, ctx.count
        rows = [each[:count].detach().float() for each in (query, key, value)]
        given = [*rows, *([] if sinks is None else [sinks.detach().float()])]
        with torch.enable_grad():
            for each in given:
                each.requires_grad_()
            mixed = attended(*given, rule=ctx.rule)
        found = torch.autograd.grad(mixed, given, grad[:count].float())
        padding = (0, 0, 0, 0, 0, len(query) - count)
        of_rows = [pad(each, padding).to(query.dtype) for each in found[:3]]
        return *of_rows, None if sinks is None else found[3].to(sinks.dtype), None, None, None


class _Score(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: list[int], sampler: Sampler) -> Tensor:
        found = sampler.score(logits.detach(), tokens, 0)
        if found is None:
            raise ValueError("a logit is not finite")
        ctx.save_for_backward(logits, torch.tensor(tokens))
        return torch.tensor([each.logprob for each in found], dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (logits, tokens) = grads, ctx.saved_tensors
        found = logits.softmax(-1).mul_(-grad[:, None])
        found[torch.arange(len(tokens)), tokens] += grad
        return found, None, None


def scores(logits: Tensor, tokens: list[int], sampler: Sampler) -> Tensor:
    """The log-probability of each token by its row of logits, [tokens] float32, as `sampler` has
    it. `logits` is [tokens, vocab] float32. Raises ValueError for logits that aren't finite."""
    return _applied(_Score, logits, tokens, sampler)
