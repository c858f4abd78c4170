"""A router on CUDA: which experts a row has, and their shares."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock.model.layer_spec import ExpertsSpec
from penstock_kernels.triton.experts.routing import RoutingRule, route
from penstock_worker.layers.experts import expert_scales, load_router
from penstock_worker.layers.parts import Parts
from penstock_worker.quantisation.interface import Product


@dataclass(frozen=True)
class TritonRouter:
    """Chooses experts for each row."""

    rule: RoutingRule
    scores: Product
    """The router's product, see load_router."""
    correction: Tensor | None
    """[experts] float32, added for choosing only; None for nothing."""
    scales: Tensor | None
    """[experts] float32: factors of shares; None for none."""

    def __call__(self, routed: Tensor) -> tuple[Tensor, Tensor]:
        """Returns each row's experts, [rows, active] int32, ascending, and their shares, [rows,
        active] float32."""
        found, shares = route(self.scores(routed), self.rule, self.correction)
        if self.scales is not None:
            shares *= self.scales[found]
        return found, shares

    @staticmethod
    def load(parts: Parts, spec: ExpertsSpec, prefix: str) -> TritonRouter:
        """Loads the router whose tensors' names begin with `prefix`."""
        scores, correction = load_router(parts, spec, prefix)
        rule = RoutingRule(
            spec.count,
            spec.active,
            sigmoid=spec.router == "sigmoid",
            normalised=spec.normalised,
            scale=spec.scale,
            groups=spec.groups,
            active_groups=spec.active_groups,
            group_best=spec.group_best,
            sum_floor=spec.sum_floor,
        )
        return TritonRouter(rule, scores, correction, expert_scales(parts, spec, prefix))
