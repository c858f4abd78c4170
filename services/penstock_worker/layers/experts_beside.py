"""A feed-forward and a mixture of experts that have the same residual as input (Gemma 4, 2026)."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.norms import Norm, RMSNorm
from penstock_worker.layers.parts import LayerExperts, Parts


class ExpertsBeside:
    """Maps the residual, [rows, hidden], to the sum of both, [rows, hidden]."""

    def __init__(
        self,
        dense: FeedForward,
        dense_norms: tuple[Norm, Norm],
        experts: LayerExperts,
        expert_norms: tuple[Norm, Norm],
        router_norm: Norm,
    ) -> None:
        """`dense_norms`, `expert_norms`: before and after. `router_norm`: before the router."""
        self._dense = dense
        self._dense_norms = dense_norms
        self._experts = experts
        self._expert_norms = expert_norms
        self._router_norm = router_norm

    def __call__(self, residual: Tensor) -> Tensor:
        before, behind = self._dense_norms
        dense = behind(self._dense(before(residual)))
        before, behind = self._expert_norms
        chosen = self._experts(before(residual), self._router_norm(residual))
        return dense + behind(chosen.to(residual.dtype))

    @staticmethod
    def load(parts: Parts, layer: int) -> ExpertsBeside:
        size, prefix = parts.config.hidden_size, f"layers.{layer}"

        def norm(name: str) -> Norm:
            return parts.norm(f"{prefix}.{name}", size)

        # What comes out of the norm is divided by the root of the size.
        weight = parts.norm_weight(f"{prefix}.mlp.router_norm", size).float() * size**-0.5
        return ExpertsBeside(
            FeedForward.load(parts, layer),
            (norm("post_attention_layernorm"), norm("dense_output_norm")),
            parts.ops.experts(parts, parts.config.layer(layer).feed_forward, f"{prefix}.mlp"),
            (norm("experts_norm"), norm("experts_output_norm")),
            RMSNorm(parts.ops, weight, parts.config.norm.eps),
        )
