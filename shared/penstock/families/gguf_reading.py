"""What the families' readers of GGUF metadata have in common.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md).
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.formats.fields import Fields
from penstock.layer_spec import RopeScaling, RopeSpec

ROPE_FACTORS = "rope_freqs.weight"
"""Tensor of divisors, one for each rotary frequency."""


@dataclass(frozen=True)
class GGUFMetadata:
    """A file's metadata about its architecture, and the names of its tensors."""

    keys: Fields
    """Without the architecture in front: `embedding_length`."""
    tensors: Container[str]
    vocab_size: int

    def sizes(self) -> dict[str, Any]:
        """Fields of ModelConfig: sizes, and whether embedding and head are tied."""
        keys = self.keys
        heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
        if heads < 1 or ("attention.key_length" not in keys and hidden % heads):
            raise UnsupportedModel(
                f"{keys.where}: {heads} attention heads don't divide the hidden size {hidden}"
            )
        head_dim = keys.integer("attention.key_length", hidden // heads)
        value_length = keys.integer("attention.value_length", head_dim)
        if value_length != head_dim:
            raise UnsupportedModel(
                f"{keys.where}: keys of {head_dim} and values of {value_length} dimensions: "
                "only equal ones are served"
            )
        return {
            "vocab_size": self.vocab_size,
            "hidden_size": hidden,
            "intermediate_size": self.same_in_all_layers("feed_forward_length"),
            "num_layers": bounds.layer_count(keys, "block_count"),
            "num_heads": heads,
            "num_kv_heads": self.same_in_all_layers("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position": keys.integer("context_length"),
            "tie_word_embeddings": "output.weight" not in self.tensors,
        }

    def window(self) -> int | None:
        """Tokens that a sliding layer sees; None: there are none."""
        tokens = self.keys.integer("attention.sliding_window", 0)
        return tokens if 0 < tokens < self.keys.integer("context_length") else None

    def has(self, *names: str) -> bool:
        """Whether the first layer has one of these tensors: `attn_q.bias`."""
        return any(f"blk.0.{name}" in self.tensors for name in names)

    def expert_counts(self) -> dict[str, Any]:
        """Fields of ExpertsSpec: how many there are, and how many a token has."""
        return bounds.expert_counts(self.keys, "expert_count", "expert_used_count")

    def rms_eps(self) -> float:
        return rounded(self.keys.number("attention.layer_norm_rms_epsilon"))

    def layer_norm_eps(self) -> float:
        return rounded(self.keys.number("attention.layer_norm_epsilon"))

    def rope(self, head_dim: int, *, theta: float = 10_000.0) -> RopeSpec:
        keys = self.keys
        dims = keys.integer("rope.dimension_count", head_dim)
        if not 0 < dims <= head_dim or dims % 2:
            raise UnsupportedModel(
                f"{keys.where}: rope.dimension_count is {dims}; 2 to {head_dim} are allowed, and "
                "an even number"
            )
        return RopeSpec(
            theta=keys.number("rope.freq_base", theta), dims=dims, scaling=self._scaling()
        )

    def same_in_all_layers(self, key: str, default: int | None = None) -> int:
        """A size that GGUF gives once, or once for each layer."""
        value = self.keys.values.get(key)
        if not isinstance(value, list):
            return self.keys.integer(key, default)
        self.keys.ignore(key)  # asked for here
        if not value or any(item != value[0] for item in value):
            raise UnsupportedModel(
                f"{self.keys.where}: {key} differs between layers, which is not served"
            )
        return Fields({key: value[0]}, self.keys.where).integer(key)

    def _scaling(self) -> RopeScaling | None:
        keys = self.keys
        kind = keys.text("rope.scaling.type", "none")
        factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
        if kind == "yarn" and ROPE_FACTORS not in self.tensors:
            return self._yarn(factor)
        if kind not in ("none", "linear"):
            raise UnsupportedModel(
                f"{keys.where}: RoPE scaling {kind!r} is not served; linear, yarn and rope_freqs "
                "are"
            )
        linear = kind == "linear" or "rope.scale_linear" in keys
        if linear and factor <= 0:
            raise UnsupportedModel(
                f"{keys.where}: the RoPE scaling factor is {factor}, not positive"
            )
        linear = linear and factor != 1.0
        if ROPE_FACTORS not in self.tensors:
            return RopeScaling(kind="linear", factor=factor) if linear else None
        if linear:
            raise UnsupportedModel(
                f"{keys.where}: linear RoPE scaling together with {ROPE_FACTORS} is not served"
            )
        return RopeScaling(kind="precomputed")

    def _yarn(self, factor: float) -> RopeScaling:
        """As the ggml project computes it: cosines and sines grow with the logarithm of the
        factor."""
        keys = self.keys
        original = keys.integer("rope.scaling.original_context_length", 0)
        if factor <= 0 or original < 1:
            raise UnsupportedModel(
                f"{keys.where}: RoPE scaling 'yarn' by {factor:g} from {original} positions; "
                "rope.scaling.factor and rope.scaling.original_context_length must be positive"
            )
        stated = keys.number("rope.scaling.attn_factor", 1.0)
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=original,
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=stated * (1.0 + 0.1 * math.log(factor) if factor > 1 else 1.0),
        )


def rounded(value: float) -> float:
    """A float32 as the short decimal that it was written as: 9.999999747378752e-06 is 1e-05."""
    return float(f"{value:.7g}")
