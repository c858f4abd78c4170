"""Reads the norms of a model for the CPU kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec
from penstock_kernels.cpu.operands import NormWeights
from penstock_worker.forward.cpu.packing import CPUPacking
from penstock_worker.layers.attention import SUB_NORM as MIXED_NORM
from penstock_worker.layers.norm_kinds import (
    ATTENTION_NORM,
    ATTENTION_OUTPUT_NORM,
    FEED_FORWARD_NORM,
    FEED_FORWARD_OUTPUT_NORM,
    norm_spec,
)


class LayerNorms(TypedDict, total=False):
    """Norms over the hidden state, by their fields in LayerWeights."""

    attention_norm: NormWeights
    feed_forward_norm: NormWeights
    attention_output_norm: NormWeights
    feed_forward_output_norm: NormWeights


class HeadNormWeights(TypedDict, total=False):
    """Norms of queries and keys, and of what heads give, by their fields in LayerWeights."""

    query_norm: NormWeights
    key_norm: NormWeights
    mixed_norm: NormWeights


@dataclass(frozen=True)
class NormReader:
    """Reads norms of the model's kind."""

    config: ModelConfig
    packing: CPUPacking

    def of_layer(self, spec: LayerSpec, at: str) -> LayerNorms:
        """Returns those norms over the hidden state that the layer has."""
        mixes, feeds = spec.halves != "feed_forward", spec.halves != "mixer"
        found, order, hidden = LayerNorms(), spec.order, self.config.hidden_size
        if order not in ("post", "summed") and spec.first_norm:
            first = self.norm(f"{at}.{ATTENTION_NORM}", hidden)
            # A layer that is one half has one norm in front, by the first one's name.
            found["attention_norm" if mixes else "feed_forward_norm"] = first
        second = order in ("pre", "sandwich") or (order == "parallel" and spec.two_norms)
        if mixes and feeds and second:
            found["feed_forward_norm"] = self.norm(f"{at}.{FEED_FORWARD_NORM}", hidden)
        after = order in ("post", "summed", "sandwich")
        if mixes and after:
            found["attention_output_norm"] = self.norm(f"{at}.{ATTENTION_OUTPUT_NORM}", hidden)
        if feeds and after:
            name = f"{at}.{FEED_FORWARD_OUTPUT_NORM}"
            found["feed_forward_output_norm"] = self.norm(name, hidden)
        return found

    def of_heads(self, spec: AttentionSpec, own: KVHeadsSpec, at: str) -> HeadNormWeights:
        """Returns those of queries and keys, and of what heads give. own: the layer's key and value
        heads."""
        found = HeadNormWeights()
        if spec.sub_norm:
            heads = spec.query_heads or self.config.num_heads
            found["mixed_norm"] = self.norm(f"{at}.self_attn.{MIXED_NORM}", heads * own.size)
        if spec.norm == "none":
            return found
        found["query_norm"] = self._of_heads(
            spec, f"{at}.self_attn.q_norm", self.config.num_heads, own
        )
        if spec.reads is None:
            found["key_norm"] = self._of_heads(spec, f"{at}.self_attn.k_norm", own.count, own)
        return found

    def _of_heads(
        self, spec: AttentionSpec, name: str, count: int, own: KVHeadsSpec
    ) -> NormWeights:
        if spec.norm == "whole":
            return self.norm(name, count * own.size)
        return replace(self.norm(name, own.size, with_bias=False), kind="rms")

    def norm(self, name: str, size: int, *, with_bias: bool = True) -> NormWeights:
        """Returns the norm of that name, of the model's kind."""
        spec = norm_spec(self.config.norm, name)
        weight = self.packing.vector(f"{name}.weight", size)
        if spec.plus_one:
            weight = weight + np.float32(1)
        biased = spec.kind == "layer" and spec.bias and with_bias
        bias = self.packing.vector(f"{name}.bias", size) if biased else None
        return NormWeights(weight, spec.eps, spec.kind, bias)
