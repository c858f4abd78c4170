"""What the families' readers of GGUF metadata have in common.

Source of the keys: the GGUF specification in the ggml project (docs/gguf.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families.gemma_layers import layer_inputs
from penstock.families.hub_reading import FULL, SLIDING
from penstock.formats.fields import Fields
from penstock.model.layer_spec import PerLayerInputsSpec
from penstock.model.rope_spec import RopeScaling, RopeSpec

if TYPE_CHECKING:  # It needs numpy, which processes without weights do without.
    from penstock.formats.gguf import GGUFTensor

RMS_EPS, LAYER_EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
ROPE_FACTORS = "rope_freqs.weight"
"""Tensor of divisors, one for each rotary frequency."""
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""Tensors of divisors for requests within the original context, and for longer ones."""


@dataclass(frozen=True)
class GGUFMetadata:
    """A file's metadata about its architecture, and the names of its tensors."""

    keys: Fields
    """The architecture's keys, without its name in front: `embedding_length`."""
    tensors: Mapping[str, GGUFTensor]
    vocab_size: int
    architecture: str = ""
    """The file's name of its architecture: one family may read several."""

    def sizes(self, **of_each_layer: int) -> dict[str, Any]:
        """Fields of ModelConfig: sizes, and whether embedding and head are tied. of_each_layer:
        what stands in the place of sizes that differ between layers."""
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
            "intermediate_size": of_each_layer.get("intermediate_size")
            or self.same_in_all_layers("feed_forward_length"),
            "num_layers": bounds.layer_count(keys, "block_count"),
            "num_heads": heads,
            "num_kv_heads": of_each_layer.get("num_kv_heads")
            or self.same_in_all_layers("attention.head_count_kv", heads),
            "head_dim": of_each_layer.get("head_dim") or head_dim,
            "max_position": keys.integer("context_length"),
            "tie_word_embeddings": "output.weight" not in self.tensors,
        }

    def in_each_layer(self, key: str) -> list[int]:
        """A size that GGUF gives once, or once for each layer."""
        count = bounds.layer_count(self.keys, "block_count")
        if not isinstance(self.keys.values.get(key), list):
            return [self.keys.integer(key)] * count
        found = self.keys.listed(key, int)
        if len(found) != count or min(found) < 1:
            raise self.keys.wrong(key, f"a list of {count} sizes")
        return found

    def layer_kinds(self) -> list[str]:
        """Whether each layer has a window (hub_reading's SLIDING) or not (FULL)."""
        key, count = "attention.sliding_window_pattern", self.keys.integer("block_count")
        sliding = self.keys.listed(key, bool)
        if len(sliding) != count:
            raise self.keys.wrong(key, f"a list of {count} flags")
        if any(sliding) and self.keys.integer("attention.sliding_window") < 1:
            raise self.keys.wrong("attention.sliding_window", "a number of tokens, at least 1,")
        return [SLIDING if each else FULL for each in sliding]

    def layer_inputs(self) -> PerLayerInputsSpec | None:
        """The inputs of each layer's own; None: there are none."""
        size = self.keys.integer("embedding_length_per_layer_input", 0)
        return layer_inputs(size, self.vocab_size, self.keys.where)

    def window(self) -> int | None:
        """Tokens that a sliding layer sees; None: there are none."""
        tokens = self.keys.integer("attention.sliding_window", 0)
        return tokens if 0 < tokens < self.keys.integer("context_length") else None

    def has(self, *names: str) -> bool:
        """Whether the first layer has one of these tensors: `attn_q.bias`."""
        return any(f"blk.0.{name}" in self.tensors for name in names)

    def has_in_any(self, name: str, count: int) -> bool:
        """Whether one of so many layers has the tensor: `ssm_conv1d.bias`."""
        return any(f"blk.{layer}.{name}" in self.tensors for layer in range(count))

    def expert_counts(self) -> dict[str, Any]:
        """Fields of ExpertsSpec: how many there are, and how many a token has."""
        return bounds.expert_counts(self.keys, "expert_count", "expert_used_count")

    def rms_eps(self) -> float:
        self.keys.ignore(LAYER_EPS)  # converters write what config.json has besides
        return rounded(self.keys.number(RMS_EPS))

    def layer_norm_eps(self) -> float:
        self.keys.ignore(RMS_EPS)
        return rounded(self.keys.number(LAYER_EPS))

    def qkv_bound(self) -> float | None:
        """What queries, keys and values are kept within; None: nothing."""
        bound = self.keys.number("attention.clamp_kqv", 0.0)
        if bound < 0:
            raise self.keys.wrong("attention.clamp_kqv", "a number from 0 on")
        return rounded(bound) if bound else None

    def rope(self, head_dim: int, *, theta: float = 10_000.0, local: bool = False) -> RopeSpec:
        """theta: where the file doesn't say. local: that of layers in a window."""
        keys, end = self.keys, "_swa" if local else ""
        dims = keys.integer(f"rope.dimension_count{end}", head_dim)
        if not 0 < dims <= head_dim or dims % 2:
            raise UnsupportedModel(
                f"{keys.where}: rope.dimension_count{end} is {dims}; 2 to {head_dim} are allowed, "
                "and an even number"
            )
        return RopeSpec(
            theta=keys.number(f"rope.freq_base{end}", theta),
            dims=dims,
            scaling=None if local else self._scaling(),
        )

    def long_rope(self, head_dim: int) -> RopeSpec:
        """The rotation of Phi-3, whose files may have two tensors of divisors: one is for requests
        within the original context, one for longer ones."""
        keys, rope = self.keys, self.rope(head_dim)
        original = keys.integer("rope.scaling.original_context_length", 0)
        if LONG_FACTORS not in self.tensors:
            return rope
        stretched = RopeScaling(
            kind="longrope",
            original_max_position=original,
            attention_factor=keys.number("rope.scaling.attn_factor", 1.0),
            short_factors=self._factors(SHORT_FACTORS, rope.dims // 2),
            long_factors=self._factors(LONG_FACTORS, rope.dims // 2),
        )
        if original < 1:
            raise keys.wrong("rope.scaling.original_context_length", "a positive number")
        return msgspec.structs.replace(rope, scaling=stretched)

    def _factors(self, name: str, count: int) -> tuple[float, ...]:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.type != "F32" or tensor.shape != (count,):
            raise UnsupportedModel(f"{self.keys.where}: {name} must be {count} numbers of type F32")
        found = tuple(map(rounded, tensor.data.view("<f4").tolist()))
        if not all(math.isfinite(each) and each > 0 for each in found):
            raise UnsupportedModel(f"{self.keys.where}: {name} has numbers that aren't positive")
        return found

    def with_sections(self, rope: RopeSpec, *, interleaved: bool = False) -> RopeSpec:
        """The rope of a decoder after a tower: how many of its pairs turn by time, row and column,
        where the file says so. interleaved: as RopeSpec has it."""
        key = "rope.dimension_sections"
        if key not in self.keys:
            return rope
        pairs = self.keys.listed(key, int)
        if min(pairs, default=-1) < 0 or sum(pairs[:3]) != rope.dims // 2 or any(pairs[3:]):
            raise self.keys.wrong(key, f"three numbers that add up to {rope.dims // 2}")
        return msgspec.structs.replace(rope, sections=tuple(pairs[:3]), interleaved=interleaved)

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
        """Yarn as the ggml project computes it: cosines and sines grow with the logarithm of the
        factor."""
        keys = self.keys
        original = keys.integer("rope.scaling.original_context_length", 0)
        if factor <= 0 or original < 1:
            raise UnsupportedModel(
                f"{keys.where}: RoPE scaling 'yarn' by {factor:g} from {original} positions; "
                "rope.scaling.factor and rope.scaling.original_context_length must be positive"
            )
        stated = keys.number("rope.scaling.attn_factor", 1.0)
        growth = math.log(factor) if factor > 1 else 0.0
        usual = (1.0 + 0.1 * growth) / (1.0 + 0.1 * growth * self.yarn_multiplier())
        return RopeScaling(
            kind="yarn",
            factor=factor,
            original_max_position=original,
            beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
            attention_factor=stated * keys.number("rope.scaling.yarn_attn_factor", usual),
        )

    def yarn_multiplier(self) -> float:
        """What sharpens scores in the place of cosines and sines: transformers' mscale_all_dim, of
        which DeepSeek's files have a tenth."""
        return self.keys.number("rope.scaling.yarn_log_multiplier", 0.0)


def rounded(value: float) -> float:
    """A float32 as the short decimal that it was written as: 9.999999747378752e-06 is 1e-05."""
    return float(f"{value:.7g}")
