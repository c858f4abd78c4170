"""One transformer layer, with its norms where the model has them."""

from __future__ import annotations

from torch import Tensor

from penstock.model.layer_spec import LayerSpec
from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.cross_attention import CROSS_NORM, CrossAttention, CrossLayer
from penstock_worker.layers.experts import MixtureOfExperts
from penstock_worker.layers.experts_beside import ExpertsBeside
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.finished_layer import Layer
from penstock_worker.layers.latent_attention import LatentAttention
from penstock_worker.layers.norms import NO_NORM, Norm
from penstock_worker.layers.parts import Parts, Recurrence
from penstock_worker.layers.step import Step
from penstock_worker.layers.streams_layer import load_streams_layer

ATTENTION_NORM = "input_layernorm"
FEED_FORWARD_NORM = "post_attention_layernorm"
"""Norms before attention and feed-forward, by the names that Llama gave them."""
ATTENTION_OUTPUT_NORM = "attention_output_norm"
FEED_FORWARD_OUTPUT_NORM = "feed_forward_output_norm"
NORMS = (ATTENTION_NORM, ATTENTION_OUTPUT_NORM, FEED_FORWARD_NORM, FEED_FORWARD_OUTPUT_NORM)


AttentionLike = SelfAttention | LatentAttention | Recurrence
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
    attention = _load_attention(parts, layer, spec)
    feed_forward = _load_feed_forward(parts, layer, spec)
    if spec.order == "parallel":
        own = norms.named(FEED_FORWARD_NORM) if spec.two_norms else None
        first = norms.named(ATTENTION_NORM)
        return ParallelLayer(first, attention, own, feed_forward, spec.residual_multiplier)
    streams = parts.config.streams
    if streams is not None:
        around = [norms.named(name) for name in NORMS]
        return load_streams_layer(parts, layer, streams, attention, feed_forward, around)
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
        return parts.ops.recurrence(parts, layer, spec.recurrent)
    kind = SelfAttention if spec.attention.latent is None else LatentAttention
    return kind.load(parts, layer)


def _load_feed_forward(parts: Parts, layer: int, spec: LayerSpec) -> AnyFeedForward:
    experts = spec.feed_forward.experts
    if experts is None:
        return FeedForward.load(parts, layer)
    return (ExpertsBeside if experts.beside else MixtureOfExperts).load(parts, layer)
