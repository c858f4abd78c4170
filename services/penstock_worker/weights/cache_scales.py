"""Scales of an FP8 KV cache among a checkpoint's tensors.

llm-compressor and AutoFP8 write them as tensors of a layer's attention (`self_attn.k_scale`), of
its projections (`k_proj.k_scale`), or as the scale of a projection's outputs
(`k_proj.output_scale`); AutoFP8's first versions had one for keys and values
(`self_attn.kv_scale`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from penstock.errors import UnsupportedModel
from penstock_worker.parallel.shard import Shard
from penstock_worker.weights.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

_SCALE = re.compile(
    r"(layers\.\d+)\.(?!encoder_attn|cross_attn)\w+"
    r"(?:\.(?:\w+_proj\.)?(?P<own>k|v|kv)_scale|\.(?P<of>[kv])_proj\.output_scale)"
)


def cache_scale(name: str) -> str | None:
    """Returns our name of a scale of the KV cache; None for another tensor. `name`: in our naming
    but for that."""
    found = _SCALE.fullmatch(name)
    return found and f"{found[1]}.self_attn.{found['own'] or found['of']}_scale"


def stored_scales(weights: Weights, shard: Shard) -> list[tuple[Tensor, Tensor]] | None:
    """Returns scales of keys and of values for each of the rank's layers, each [kv_heads] float32
    of the rank's heads. None if the checkpoint has none. A layer without any has ones, and one that
    reads another's keys and values has that one's.

    `weights`: not cut to the rank. Raises UnsupportedModel for scales of another number of heads,
    and for some that aren't finite and positive."""
    sources = [_source(shard, layer) for layer in shard.layers]
    found = [_of_layer(weights, shard, layer) for layer in sources]
    if all(each is None for each in found):
        return None
    ones = [torch.ones(_heads(shard, layer), device=weights.device) for layer in sources]
    return [(one, one) if each is None else each for one, each in zip(ones, found, strict=True)]


def _source(shard: Shard, layer: int) -> int:
    """Which layer stores the keys and values of `layer`."""
    reads = shard.config.layer(layer).attention.reads
    return layer if reads is None else reads


def _of_layer(weights: Weights, shard: Shard, layer: int) -> tuple[Tensor, Tensor] | None:
    prefix, heads = f"layers.{layer}.self_attn", _heads(shard, layer)

    def own(names: Sequence[str]) -> Tensor | None:
        name = next((each for each in names if weights.has(each)), None)
        return None if name is None else _taken(weights, name, shard, layer)

    key = own((f"{prefix}.k_scale", f"{prefix}.kv_scale"))
    value = own((f"{prefix}.v_scale", f"{prefix}.kv_scale"))
    if key is None and value is None:
        return None
    one = torch.ones(heads, device=weights.device)
    return one if key is None else key, one if value is None else value


def _taken(weights: Weights, name: str, shard: Shard, layer: int) -> Tensor:
    """A scale for all heads, or for each, in whatever shape."""
    shape, count = weights.shape(name), shard.config.kv_heads(layer).count
    numbers = torch.empty(shape)
    weights.stored(name, shape).read_into(numbers)
    numbers = numbers.flatten()
    if len(numbers) not in (1, count):
        raise UnsupportedModel(
            f"tensor {name} has shape {shape}; one scale, or one for each of {count} KV heads, is"
            " expected"
        )
    if not (numbers.isfinite() & (numbers > 0)).all():
        raise UnsupportedModel(f"tensor {name} holds scales that aren't finite and positive")
    return numbers.expand(count)[_kept(shard, layer)].to(weights.device, copy=True)


def _kept(shard: Shard, layer: int) -> slice:
    """The rank's KV heads. Layers with heads of their own are whole on each rank."""
    if shard.config.layer(layer).attention.kv_heads is not None:
        return slice(None)
    return slice(shard.kv_heads.start, shard.kv_heads.stop)


def _heads(shard: Shard, layer: int) -> int:
    return len(range(shard.config.kv_heads(layer).count)[_kept(shard, layer)])
