"""One transformer layer, with its norms where the model has them."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.layers.attention import SelfAttention
from penstock_worker.layers.experts import MixtureOfExperts
from penstock_worker.layers.feed_forward import FeedForward
from penstock_worker.layers.latent_attention import LatentAttention
from penstock_worker.layers.norms import NO_NORM, Norm
from penstock_worker.layers.parts import Parts
from penstock_worker.layers.step import Step

ATTENTION_NORM = "input_layernorm"
FEED_FORWARD_NORM = "post_attention_layernorm"
"""In front of attention and feed-forward: the names that Llama gave them."""
ATTENTION_OUTPUT_NORM = "attention_output_norm"
FEED_FORWARD_OUTPUT_NORM = "feed_forward_output_norm"


class Branch:
    """Attention or feed-forward with what lies behind it."""

    def __init__(self, output_norm: Norm, multiplier: float) -> None:
        self._output_norm = output_norm
        self._multiplier = multiplier

    def finish(self, x: Tensor) -> Tensor:
        """Returns what is added to the residual."""
        normed = self._output_norm(x)
        return normed if self._multiplier == 1.0 else normed * self._multiplier


class DecoderLayer:
    """A layer whose result is residual + the tensor it returns. The addition is left to the next
    norm, so that one kernel does both."""

    def __init__(
        self,
        attention_norm: Norm,
        attention: SelfAttention | LatentAttention,
        feed_forward_norm: Norm,
        feed_forward: FeedForward | MixtureOfExperts,
        branches: tuple[Branch, Branch],
    ) -> None:
        """`branches` are those of attention and feed-forward."""
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward
        self._attention_branch, self._feed_forward_branch = branches

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        """`update` is what the previous layer returned, None before the first. Both tensors are
        [rows, hidden]. Modifies `residual`."""
        norm = self.attention_norm
        normed = norm(residual) if update is None else norm.added(update, residual)
        mixed = self._attention_branch.finish(self.attention(normed, step))
        return self._feed_forward_branch.finish(
            self.feed_forward(self.feed_forward_norm.added(mixed, residual))
        )


class ParallelLayer:
    """A layer whose attention and feed-forward have the same residual as input, normed by one norm
    or by two (Wang and Komatsuzaki, "GPT-J", 2021)."""

    def __init__(
        self,
        attention_norm: Norm,
        attention: SelfAttention | LatentAttention,
        feed_forward_norm: Norm | None,
        feed_forward: FeedForward | MixtureOfExperts,
        multiplier: float,
    ) -> None:
        """`feed_forward_norm`: None if the attention's holds for both."""
        self.attention_norm = attention_norm
        self.attention = attention
        self.feed_forward_norm = feed_forward_norm
        self.feed_forward = feed_forward
        self._branch = Branch(NO_NORM, multiplier)

    def __call__(self, update: Tensor | None, residual: Tensor, step: Step) -> Tensor:
        """As DecoderLayer's."""
        norm = self.attention_norm
        normed = norm(residual) if update is None else norm.added(update, residual)
        mixed = self.attention(normed, step)
        own = self.feed_forward_norm
        inner = self.feed_forward(normed if own is None else own(residual))
        return self._branch.finish(mixed + inner)


def load_layer(parts: Parts, layer: int) -> DecoderLayer | ParallelLayer:
    """Returns layer number `layer` of the model."""
    spec, size, prefix = parts.config.layer(layer), parts.config.hidden_size, f"layers.{layer}"
    attention_kind = SelfAttention if spec.attention.latent is None else LatentAttention
    attention = attention_kind.load(parts, layer)
    kind = FeedForward if spec.feed_forward.experts is None else MixtureOfExperts
    feed_forward = kind.load(parts, layer)

    def norm(name: str, wanted: bool) -> Norm:
        return parts.norm(f"{prefix}.{name}", size) if wanted else NO_NORM

    if spec.order == "parallel":
        own = norm(FEED_FORWARD_NORM, True) if spec.two_norms else None
        first = norm(ATTENTION_NORM, True)
        return ParallelLayer(first, attention, own, feed_forward, spec.residual_multiplier)
    before, behind = spec.order in ("pre", "sandwich"), spec.order in ("post", "sandwich")
    return DecoderLayer(
        norm(ATTENTION_NORM, before and spec.first_norm),
        attention,
        norm(FEED_FORWARD_NORM, before),
        feed_forward,
        (
            Branch(norm(ATTENTION_OUTPUT_NORM, behind), spec.residual_multiplier),
            Branch(norm(FEED_FORWARD_OUTPUT_NORM, behind), spec.residual_multiplier),
        ),
    )
