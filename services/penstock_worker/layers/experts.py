"""A mixture of experts: each token has the feed-forward networks that a router chooses for it.

Source: Shazeer et al., "Outrageously large neural networks", 2017; the router with groups and
correction: DeepSeek-AI, "DeepSeek-V3 technical report", 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec
from penstock_kernels.reference import softplus
from penstock_worker.adapters.rows import RowAdapters
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.parts import ExpertsAtOnce, LayerExperts, Parts, meanwhile
from penstock_worker.parallel.ranks import ALONE, Ranks
from penstock_worker.quantisation.interface import Product
from penstock_worker.weights.names import TOKEN_EXPERTS
from penstock_worker.weights.placing import is_nowhere
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


class Router:
    """Chooses experts for each row. A row's choice depends on that row alone."""

    def __init__(
        self,
        spec: ExpertsSpec,
        scores: Product,
        correction: Tensor | None,
        scales: Tensor | None = None,
    ) -> None:
        """`scores` maps [rows, hidden] to [rows, experts]. `correction` is [experts] float32,
        added for choosing only. `scales`, [experts] float32, are factors of weights."""
        self._spec = spec
        self._scores = scores
        self._correction = correction
        self._scales = scales

    def __call__(self, hidden: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Returns each expert's weight for each row, [rows, experts] float32; 0 if it isn't
        chosen. `chosen`: [rows, active] int64, where it is known; None: those with the highest
        scores are."""
        spec, raw = self._spec, self._scores(hidden).float()
        if spec.router == "sparse_mixer":
            return sparse_mixture(raw, spec.active, spec.nearness)
        if spec.router == "softmax":
            raw = raw - raw.amax(-1, keepdim=True)
            scores = raw.exp()
            scores = scores / scores.sum(-1, keepdim=True)
        elif spec.router == "sqrt_softplus":
            scores = softplus(raw).sqrt()
        else:
            scores = 1.0 / (1.0 + torch.exp(-raw))
        if chosen is None:
            chosen = self._chosen(scores)
        weights = scores.gather(1, chosen)
        if spec.normalised:
            weights = weights / (weights.sum(-1, keepdim=True) + spec.sum_floor)
        if self._scales is not None:
            weights = weights * self._scales[chosen]
        return torch.zeros_like(scores).scatter_(1, chosen, weights * spec.scale)

    def _chosen(self, scores: Tensor) -> Tensor:
        """Returns the chosen experts of each row, [rows, active] int64, in ascending order."""
        spec = self._spec
        ranked = scores if self._correction is None else scores + self._correction
        if spec.groups > 1:
            ranked = ranked.masked_fill(~self._in_best_groups(ranked), float("-inf"))
        return ranked.topk(spec.active, dim=-1).indices.sort(-1).values

    def _in_best_groups(self, ranked: Tensor) -> Tensor:
        """Returns which experts belong to the groups whose best score highest."""
        groups, counted = self._spec.groups, self._spec.group_best
        by_group = ranked.unflatten(-1, (groups, -1))
        best = (
            by_group.topk(counted, dim=-1)
            .values.sum(-1)
            .topk(self._spec.active_groups, dim=-1)
            .indices
        )
        open_groups = torch.zeros_like(by_group[..., 0], dtype=torch.bool).scatter_(1, best, True)
        return open_groups[..., None].expand_as(by_group).flatten(1)


def sparse_mixture(products: Tensor, active: int, nearness: float) -> Tensor:
    """SparseMixer at inference (Liu et al., "GRIN: gradient-informed MoE", 2024): one choice after
    another, the best product that is left has its softmax over those left that are near it.

    products: [rows, experts] float32.  nearness: as ExpertsSpec has it.  Returns each expert's
    weight for each row, like it; 0 if it isn't chosen.
    """
    weights, left = torch.zeros_like(products), products
    for _ in range(active):
        best = left.argmax(-1, keepdim=True)
        peak = left.gather(1, best)
        # Where both are 0, their distance is no number and nothing is farther.
        far = (peak - products) / products.abs().maximum(peak) > nearness
        total = (left - peak).exp().masked_fill(far, 0.0).sum(-1, keepdim=True)
        weights = weights.scatter(1, best, 1.0 / total)
        left = left.scatter(1, best, float("-inf"))
    return weights


class RoutedExperts(ExpertsAtOnce):
    """An expert computes the rows that chose it, and a row adds its experts' results in their
    order."""

    def __init__(
        self,
        router: Router,
        experts: list[FeedForward],
        *,
        weighs_input: bool = False,
        adapters: RowAdapters | None = None,
    ) -> None:
        """`weighs_input`: as in ExpertsSpec. `adapters`: of the experts' products, each of which
        has some of the rows; None: they have none."""
        self._adapters = adapters
        self._router = router
        self._experts = experts
        self._weighs_input = weighs_input

    def __call__(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Tensor:
        weights = self._router(hidden if routed is None else routed, chosen)
        out = torch.zeros(hidden.shape, dtype=torch.float32)
        for number, expert in enumerate(self._experts):
            rows = weights[:, number].nonzero()[:, 0]
            if len(rows):
                with nullcontext() if self._adapters is None else self._adapters.only(rows):
                    out[rows] += self._of_expert(expert, hidden[rows], weights[rows, number, None])
        return out

    def _of_expert(self, expert: FeedForward, rows: Tensor, weights: Tensor) -> Tensor:
        if self._weighs_input:
            return expert((rows.float() * weights).to(rows.dtype)).float()
        return expert(rows).float() * weights

    @staticmethod
    def load(parts: Parts, feed_forward: FeedForwardSpec, prefix: str) -> RoutedExperts:
        spec = experts_of(feed_forward)
        of_expert = replace(feed_forward, limit=spec.limit)
        return RoutedExperts(
            Router(spec, *load_router(parts, spec, prefix), expert_scales(parts, spec, prefix)),
            [
                FeedForward.sized(
                    parts,
                    of_expert,
                    f"{prefix}.experts.{number}",
                    spec.inner,
                    width=spec.latent,
                    summed=False,
                )
                for number in range(spec.count)
            ],
            weighs_input=spec.weighs_input,
            adapters=parts.adapters if isinstance(parts.adapters, RowAdapters) else None,
        )


class LatentExperts:
    """LayerExperts whose experts read a projection of the hidden state, and whose sum is projected
    back."""

    def __init__(self, experts: LayerExperts, down: Product, up: Product) -> None:
        self._experts = experts
        self._down = down
        self._up = up

    def __call__(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Tensor:
        return self.begin(hidden, routed, chosen)()

    def begin(
        self, hidden: Tensor, routed: Tensor | None = None, chosen: Tensor | None = None
    ) -> Callable[[], Tensor]:
        """As LayerExperts has it."""
        routed = hidden if routed is None else routed
        finish = self._experts.begin(self._down(hidden), routed, chosen)
        # Each rank projects its part of the sum: without a bias, these add up.
        return lambda: self._up(finish().to(hidden.dtype)).float()

    @staticmethod
    def load(parts: Parts, experts: LayerExperts, latent: int, prefix: str) -> LatentExperts:
        """`latent`: the size that `experts` map."""
        hidden = parts.config.hidden_size
        return LatentExperts(
            experts,
            parts.product([(f"{prefix}.latent_down", latent)], hidden, bias=False),
            parts.product([(f"{prefix}.latent_up", hidden)], latent, bias=False),
        )


class MixtureOfExperts:
    """Maps [rows, hidden] to [rows, hidden]."""

    def __init__(
        self,
        routed: LayerExperts,
        shared: FeedForward | None,
        shared_gate: Product | None,
        ranks: Ranks = ALONE,
        by_token: Tensor | None = None,
    ) -> None:
        """`shared`: the expert that every row has. `shared_gate` maps [rows, hidden] to the logit
        of its weight, [rows, 1]. Each of `ranks` has a part of every expert's inner dimension, so
        that a row's sum over experts is a part of its sum over ranks. `by_token`: [vocab, active]
        int64, the experts of each token id; None: the router chooses."""
        self._routed = routed
        self._shared = shared
        self._shared_gate = shared_gate
        self._ranks = ranks
        self._by_token = by_token

    def __call__(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """`tokens`: ids of the rows' tokens, [rows] int64, where these choose."""
        chosen = None
        if self._by_token is not None:
            if tokens is None:
                raise TypeError("these experts are chosen by tokens' ids")
            chosen = self._by_token[tokens]
        begun = self._routed.begin(hidden, chosen=chosen)
        out, shared = meanwhile(begun, lambda: self._shared_part(hidden))
        if shared is not None:
            out += shared
        return self._ranks.sum(out).to(hidden.dtype)

    def _shared_part(self, hidden: Tensor) -> Tensor | None:
        if self._shared is None:
            return None
        found = self._shared(hidden).float()
        if self._shared_gate is None:
            return found
        return found / (1.0 + torch.exp(-self._shared_gate(hidden).float()))

    @staticmethod
    def load(parts: Parts, layer: int) -> MixtureOfExperts:
        prefix, feed_forward = f"layers.{layer}.mlp", parts.config.layer(layer).feed_forward
        spec, routed = experts_of(feed_forward), parts.ops.experts(parts, feed_forward, prefix)
        if spec.latent:
            routed = LatentExperts.load(parts, routed, spec.latent, prefix)
        return MixtureOfExperts(
            routed,
            *_shared(parts, feed_forward, spec, prefix),
            ranks=parts.ranks,
            by_token=load_by_token(parts.weights, parts.config.vocab_size, spec, prefix)
            if spec.by_token
            else None,
        )


def experts_of(feed_forward: FeedForwardSpec) -> ExpertsSpec:
    if feed_forward.experts is None:
        raise TypeError("the layer has no experts")
    return feed_forward.experts


def load_router(parts: Parts, spec: ExpertsSpec, prefix: str) -> tuple[Product, Tensor | None]:
    """Returns the router's product, of [rows, experts], and its correction, [experts] float32."""
    correction = None
    if spec.correction:
        correction = parts.weights.take(f"{prefix}.router.correction", (spec.count,), torch.float32)
    names = [(f"{prefix}.router", spec.count)]
    scores = parts.product(names, parts.config.hidden_size, bias=spec.router_bias)
    return scores, correction


def load_by_token(weights: Weights, vocab: int, spec: ExpertsSpec, prefix: str) -> Tensor:
    """Returns the experts of each token id, [vocab, active] int64. Raises UnsupportedModel for ones
    that there aren't, or that a token has twice."""
    name = f"{prefix}.{TOKEN_EXPERTS}"
    table = weights.take_table(name, (vocab, spec.active))
    if is_nowhere(table.device):
        return table
    ordered = table.sort(-1).values
    if bool(((table < 0) | (table >= spec.count)).any()):
        raise UnsupportedModel(
            f"tensor {name} has numbers of experts from {int(table.min())} to {int(table.max())};"
            f" 0 to {spec.count - 1} are allowed"
        )
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise UnsupportedModel(f"tensor {name} has a token with the same expert twice")
    return table


def expert_scales(parts: Parts, spec: ExpertsSpec, prefix: str) -> Tensor | None:
    """Returns each expert's factor, [experts] float32."""
    if not spec.expert_scales:
        return None
    return parts.weights.take(f"{prefix}.router.scales.weight", (spec.count,), torch.float32)


def _shared(
    parts: Parts, feed_forward: FeedForwardSpec, spec: ExpertsSpec, prefix: str
) -> tuple[FeedForward | None, Product | None]:
    if not spec.shared_inner:
        return None, None
    gate = None
    if spec.shared_gate:
        gate = parts.product(
            [(f"{prefix}.shared_expert_gate", 1)], parts.config.hidden_size, bias=False
        )
    at = f"{prefix}.shared_expert"
    return FeedForward.sized(parts, feed_forward, at, spec.shared_inner, summed=False), gate
