"""The phases of a layer whose experts stand beside a feed-forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock_kernels.cpu.program import Buffer, NormWeights, Phase, PhaseKind
from penstock_worker.forward.cpu.gates import product_into
from penstock_worker.forward.cpu.layers import LayerPhases


@dataclass(frozen=True)
class BesideLayerPhases(LayerPhases):
    """Both read the residual, each by norms of its own, and so does the router. No ranks share such
    a layer."""

    def _fed(self) -> Iterator[Phase]:
        norms, experts, weights = self.weights.beside, self.weights.experts, self.weights
        if norms is None or experts is None or weights.gate is None:
            raise ValueError("no program has such a layer of experts")
        yield self._input(norms.router, experts.router)
        yield self._scores(experts.router)
        yield self._input(norms.experts, *experts.gates, *experts.ups)
        yield self._route(experts)
        yield self._experts_up(experts)
        yield Phase(kind=PhaseKind.EXPERTS_DOWN, experts=self.experts)
        yield Phase(kind=PhaseKind.COMBINE, target=Buffer.RESULT, experts=self.experts, adds=False)
        yield self._over(PhaseKind.NORM, Buffer.RESULT, Buffer.RESULT, norms.experts_output)
        yield from self._dense()
        # Attention has no more use for MIXED.
        yield self._over(PhaseKind.ADD_NORM, Buffer.MIXED, Buffer.RESULT, norms.dense_output)
        last = weights.feed_forward_output_norm
        yield self._over(PhaseKind.ADD_NORM, Buffer.RESULT, Buffer.RESIDUAL, last)

    def _dense(self) -> Iterator[Phase]:
        """The feed-forward, as MIXED before its norm."""
        weights = self.weights
        if weights.gate is None or weights.up is None or weights.down is None:
            raise ValueError("the feed-forward beside experts is gated")
        yield self._input(weights.feed_forward_norm, weights.gate, weights.up)
        yield self._gated_up()
        yield product_into(weights.down, Buffer.MIXED, source=Buffer.INNER)

    def _over(
        self, kind: PhaseKind, source: Buffer, target: Buffer, norm: NormWeights | None
    ) -> Phase:
        width, scale = self.config.hidden_size, 1.0
        if kind is PhaseKind.ADD_NORM and target is Buffer.RESIDUAL:
            scale = self.spec.residual_multiplier
        return Phase(kind=kind, source=source, target=target, width=width, norm=norm, scale=scale)
