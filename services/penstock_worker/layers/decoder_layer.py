"""One transformer layer, with its norms where the model has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.layer_spec import LayerSpec
from penstock_worker.layers.attention import CROSS_NORM, CrossAttention, CrossLayer, SelfAttention
from penstock_worker.layers.compressed_attention import CompressedSelfAttention
from penstock_worker.layers.experts import MixtureOfExperts
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.hyper_connections import HyperLayer
from penstock_worker.layers.latent_attention import LatentAttention
from penstock_worker.layers.norm_kinds import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT_NORM,
    FEED_FORWARD_NORM,
    FEED_FORWARD_OUTPUT_NORM,
    NORMS,
)
from penstock_worker.layers.parts import (
    NO_NORM,
    LayerExperts,
    Norm,
    Parts,
    Recurrence,
    RMSNorm,
    meanwhile,
)
from penstock_worker.layers.per_layer_inputs import Layer
from penstock_worker.layers.picture_layer import PictureLayer
from penstock_worker.layers.step import Step
from penstock_worker.layers.streams_layer import load_streams_layer

if TYPE_CHECKING:
    from torch import Tensor


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
        before, behind = self._expert_norms
        begun = self._experts.begin(before(residual), self._router_norm(residual))
        chosen, dense = meanwhile(begun, lambda: self._of_dense(residual))
        return dense + behind(chosen.to(residual.dtype))

    def _of_dense(self, residual: Tensor) -> Tensor:
        before, behind = self._dense_norms
        return behind(self._dense(before(residual)))

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


class AttentionBeside:
    """Attention and a recurrent layer that read the same rows, [rows, hidden]: it gives the sum of
    both."""

    def __init__(self, attention: SelfAttention, recurrence: Recurrence) -> None:
        self.attention = attention
        self.recurrence = recurrence

    def __call__(self, hidden: Tensor, step: Step) -> Tensor:
        return self.attention(hidden, step) + self.recurrence(hidden, step)


AttentionLike = (
    SelfAttention | LatentAttention | CompressedSelfAttention | Recurrence | AttentionBeside
)
AnyFeedForward = FeedForward | MixtureOfExperts | ExpertsBeside


class Branch:
    """Attention or feed-forward with what lies after it."""

    def __init__(self, output_norm: Norm, multiplier: float) -> None:
        self._output_norm = output_norm
        self._multiplier = multiplier

    def finish(self, x: Tensor) -> Tensor:
        """Returns what is added to the residual."""
        normed = self._output_norm(x)
        return normed if self._multiplier == 1.0 else normed * self._multiplier


class DecoderLayer:
    """A Layer of attention, or what stands in its place, and then feed-forward."""

    def __init__(
        self,
        attention_norm: Norm,
        attention: AttentionLike,
        feed_forward_norm: Norm,
        feed_forward: AnyFeedForward,
        branches: tuple[Branch, Branch],
    ) -> None:
        """`branches` are those of attention and feed-forward."""
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward
        self._attention_branch, self._feed_forward_branch = branches

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        norm = self.attention_norm
        normed = norm(residual) if update is None else norm.added(update, residual)
        mixed = self._attention_branch.finish(self.attention(normed, step))
        return self._feed_forward_branch.finish(
            self.feed_forward(self.feed_forward_norm.added(mixed, residual))
        )


class SummedLayer:
    """A Layer whose norms are over the sums with the residual, and take its place (Vaswani et al.,
    2017)."""

    def __init__(
        self,
        attention: AttentionLike,
        attention_norm: Norm,
        feed_forward: AnyFeedForward,
        feed_forward_norm: Norm,
    ) -> None:
        self.attention = attention
        self.attention_norm = attention_norm
        self.feed_forward = feed_forward
        self.feed_forward_norm = feed_forward_norm

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> None:
        """There is no update."""
        hidden = self.attention_norm.added(self.attention(residual, step), residual)
        residual.copy_(self.feed_forward_norm.added(self.feed_forward(hidden), hidden))


class ParallelLayer:
    """A Layer whose attention and feed-forward have the same residual as input, normed by one norm
    or by two (Wang and Komatsuzaki, "GPT-J", 2021)."""

    def __init__(
        self,
        attention_norm: Norm,
        attention: AttentionLike,
        feed_forward_norm: Norm | None,
        feed_forward: AnyFeedForward,
        multiplier: float,
    ) -> None:
        """`feed_forward_norm`: None if the attention's holds for both."""
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward
        self._branch = Branch(NO_NORM, multiplier)

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        norm = self.attention_norm
        normed = norm(residual) if update is None else norm.added(update, residual)
        mixed = self.attention(normed, step)
        own = self.feed_forward_norm
        inner = self.feed_forward(normed if own is None else own(residual))
        return self._branch.finish(mixed + inner)


class MixerLayer:
    """A Layer of attention, or what stands in its place, without feed-forward."""

    def __init__(self, attention_norm: Norm, attention: AttentionLike, branch: Branch) -> None:
        self.attention_norm = attention_norm
        self.attention = attention
        self._branch = branch

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        norm = self.attention_norm
        normed = norm(residual) if update is None else norm.added(update, residual)
        return self._branch.finish(self.attention(normed, step))


class FeedForwardLayer:
    """A Layer of feed-forward only."""

    def __init__(
        self, feed_forward_norm: Norm, feed_forward: AnyFeedForward, branch: Branch
    ) -> None:
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward
        self._branch = branch

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        norm = self.feed_forward_norm
        normed = norm(residual) if update is None else norm.added(update, residual)
        return self._branch.finish(self.feed_forward(normed))


def load_layer(parts: Parts, layer: int) -> Layer:
    """Returns layer number `layer` of the model."""
    spec, norms = parts.config.layer(layer), _Norms(parts, layer)
    if spec.halves == "mixer":
        branch = Branch(norms.behind(ATTENTION_OUTPUT_NORM), spec.residual_multiplier)
        return MixerLayer(norms.first(), _load_attention(parts, layer, spec), branch)
    if spec.halves == "feed_forward":
        branch = Branch(norms.behind(FEED_FORWARD_OUTPUT_NORM), spec.residual_multiplier)
        feed_forward = _load_feed_forward(parts, layer, spec)
        return FeedForwardLayer(norms.first(), feed_forward, branch)
    if parts.config.cross_attention is not None:
        return _load_cross_layer(parts, layer, norms)
    if spec.attention.sees_pictures:
        both = (norms.named(ATTENTION_NORM), norms.named(FEED_FORWARD_NORM))
        return PictureLayer.load(parts, layer, both)
    attention = _load_attention(parts, layer, spec)
    feed_forward = _load_feed_forward(parts, layer, spec)
    if spec.order == "parallel":
        own = norms.named(FEED_FORWARD_NORM) if spec.two_norms else None
        first = norms.named(ATTENTION_NORM)
        return ParallelLayer(first, attention, own, feed_forward, spec.residual_multiplier)
    if spec.order == "summed":
        first, second = map(norms.named, (ATTENTION_OUTPUT_NORM, FEED_FORWARD_OUTPUT_NORM))
        return SummedLayer(attention, first, feed_forward, second)
    streams = parts.config.streams
    if streams is not None:
        around = [norms.named(name) for name in NORMS]
        return load_streams_layer(parts, layer, streams, attention, feed_forward, around)
    hyper = parts.config.hyper_connections
    if hyper is not None and not isinstance(feed_forward, ExpertsBeside):
        both = (norms.named(ATTENTION_NORM), norms.named(FEED_FORWARD_NORM))
        return HyperLayer.load(parts, layer, hyper, both, attention, feed_forward)
    beside = isinstance(feed_forward, ExpertsBeside)
    return DecoderLayer(
        norms.first(),
        attention,
        NO_NORM if beside else norms.before(FEED_FORWARD_NORM),
        feed_forward,
        (
            Branch(norms.behind(ATTENTION_OUTPUT_NORM), spec.residual_multiplier),
            Branch(norms.behind(FEED_FORWARD_OUTPUT_NORM), spec.residual_multiplier),
        ),
    )


def _load_cross_layer(parts: Parts, layer: int, norms: _Norms) -> CrossLayer:
    return CrossLayer(
        (norms.named(ATTENTION_NORM), SelfAttention.load(parts, layer)),
        (norms.named(CROSS_NORM), CrossAttention.load(parts, layer)),
        (norms.named(FEED_FORWARD_NORM), FeedForward.load(parts, layer)),
    )


class _Norms:
    """Loads a layer's norms, where its order has them."""

    def __init__(self, parts: Parts, layer: int) -> None:
        self._parts = parts
        self._layer = layer
        self._spec = parts.config.layer(layer)

    def named(self, name: str) -> Norm:
        return self._parts.norm(f"layers.{self._layer}.{name}", self._parts.config.hidden_size)

    def first(self) -> Norm:
        return self.before(ATTENTION_NORM) if self._spec.first_norm else NO_NORM

    def before(self, name: str) -> Norm:
        return self.named(name) if self._spec.order in ("pre", "sandwich") else NO_NORM

    def behind(self, name: str) -> Norm:
        return self.named(name) if self._spec.order in ("post", "sandwich") else NO_NORM


def _load_attention(parts: Parts, layer: int, spec: LayerSpec) -> AttentionLike:
    if spec.recurrent is not None:
        recurrence = parts.ops.recurrence(parts, layer, spec.recurrent)
        if not spec.attends_beside:
            return recurrence
        return AttentionBeside(SelfAttention.load(parts, layer), recurrence)
    if spec.attention.compressed is not None:
        return CompressedSelfAttention.load(parts, layer)
    kind = SelfAttention if spec.attention.latent is None else LatentAttention
    return kind.load(parts, layer)


def _load_feed_forward(parts: Parts, layer: int, spec: LayerSpec) -> AnyFeedForward:
    experts = spec.feed_forward.experts
    if experts is None:
        return FeedForward.load(parts, layer)
    return (ExpertsBeside if experts.beside else MixtureOfExperts).load(parts, layer)
