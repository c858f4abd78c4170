"""Gemma 3n, its text half: four residuals, of which each layer computes one, inputs of each layer's
own, gates that are mostly zero, and last layers that read the keys and values of earlier ones.

Source: Gemma team, "Gemma 3n", 2025; keys: transformers' Gemma3nTextConfig.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gemma2 import NAMES as NORM_NAMES
from penstock.families.gemma_layers import kv_sources, read_layer_inputs
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec, StreamsSpec

THETA, LOCAL_THETA = 1_000_000.0, 10_000.0
SOFT_CAP = 30.0
"""Soft cap of logits, where a file doesn't say."""
SPARSE_LAYERS, SPARSITY = 10, 0.95
"""How many of a large model's first layers have sparse gates, and how sparse, where config.json
doesn't say."""


def _hub(fields: Fields) -> ModelConfig:
    inner = _inner(fields)
    sizes = hub.sizes(fields, default_head_dim=256, tied=True, inner=inner[0])
    count = sizes["num_layers"]
    inner = inner if len(inner) > 1 else inner * count
    sparsity = _sparsity(fields, count)
    if len(inner) != count or len(sparsity) != count:
        raise UnsupportedModel(
            f"{fields.where}: intermediate_size has {len(inner)} and activation_sparsity_pattern "
            f"{len(sparsity)} entries; there are {count} layers"
        )
    hub.activation(fields, "gelu_tanh", key="hidden_activation", default="gelu_pytorch_tanh")
    kinds = hub.layer_kinds(fields, count, hub.every_nth_full(5, count))
    reads = kv_sources(kinds, fields.integer("num_kv_shared_layers", 15), fields.where)
    window, bias, dim = hub.window(fields), fields.flag("attention_bias", False), sizes["head_dim"]
    fields.ignore("altup_coef_clip", "altup_lr_multiplier")  # of training
    return ModelConfig(
        architecture="gemma3n",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(
            hub.rope(fields, dim, kind=hub.FULL, theta=THETA),
            hub.local_rope(fields, dim, fields.number("rope_local_base_freq", LOCAL_THETA)),
        ),
        layers=_layers(kinds, reads, window, inner, sparsity, bias),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=_soft_cap(fields),
        per_layer_inputs=read_layer_inputs(fields, sizes["vocab_size"], padding=0),
        streams=_streams(fields),
    )


def _soft_cap(fields: Fields) -> float | None:
    """null means that there is none."""
    key = "final_logit_softcapping"
    return fields.optional_number(key) if key in fields else SOFT_CAP


def _layers(
    kinds: list[str],
    reads: list[int | None],
    window: int | None,
    inner: list[int],
    sparsity: list[float],
    bias: bool = False,
) -> tuple[LayerSpec, ...]:
    return hub.shared(
        LayerSpec(
            attention=AttentionSpec(
                window=window if kind == hub.SLIDING else None,
                scale=1.0,
                rope=1 if kind == hub.SLIDING else 0,
                norm="head",
                value_norm=True,
                reads=reads[number],
                qkv_bias=bias,
                output_bias=bias,
            ),
            feed_forward=FeedForwardSpec(
                activation="gelu_tanh",
                inner=None if inner[number] == inner[0] else inner[number],
                sparsity=sparsity[number],
            ),
            order="sandwich",
        )
        for number, kind in enumerate(kinds)
    )


def _inner(fields: Fields) -> list[int]:
    """The feed-forward's inner dimension: of each layer, or one that holds for all."""
    key = "intermediate_size"
    if isinstance(fields.values.get(key), list):
        found = fields.listed(key, int)
        if not found or not 1 <= min(found) <= max(found) <= bounds.MAX_INNER:
            raise fields.wrong(key, f"a list of sizes from 1 to {bounds.MAX_INNER}")
        return found
    return [fields.integer(key, 16_384)]


def _sparsity(fields: Fields, count: int) -> list[float]:
    key = "activation_sparsity_pattern"
    if key not in fields:
        return _usual_sparsity(count)
    found = fields.listed(key, float)
    if not all(0 <= share < 1 for share in found):
        raise fields.wrong(key, "a list of numbers from 0 to below 1")
    return found


def _usual_sparsity(count: int) -> list[float]:
    sparse = SPARSE_LAYERS if count > SPARSE_LAYERS else 0
    return [SPARSITY] * sparse + [0.0] * (count - sparse)


def _streams(fields: Fields) -> StreamsSpec:
    spec = StreamsSpec(
        count=fields.integer("altup_num_inputs", 4),
        active=fields.integer("altup_active_idx", 0),
        scaled=fields.flag("altup_correct_scale", True),
        rank=fields.integer("laurel_rank", 64),
    )
    if not 1 <= spec.rank <= bounds.MAX_INNER:
        raise fields.wrong("laurel_rank", f"a number from 1 to {bounds.MAX_INNER}")
    return _checked(spec, fields.where)


def _checked(spec: StreamsSpec, where: str) -> StreamsSpec:
    if not (2 <= spec.count <= bounds.MAX_STREAMS and 0 <= spec.active < spec.count):
        raise UnsupportedModel(
            f"{where}: AltUp's active input is {spec.active} of {spec.count}; 2 to "
            f"{bounds.MAX_STREAMS} inputs are allowed, and one of them is active"
        )
    return spec


def _gguf(model: GGUFMetadata) -> ModelConfig:
    keys, kinds = model.keys, model.layer_kinds()
    inner = model.in_each_layer("feed_forward_length")
    sizes = model.sizes(intermediate_size=inner[0])
    count, dim = sizes["num_layers"], sizes["head_dim"]
    reads = kv_sources(kinds, keys.integer("attention.shared_kv_layers"), keys.where)
    sparsity = _gguf_sparsity(keys, count)
    path = model.tensors.get("blk.0.laurel_l.weight")
    if path is None:
        raise UnsupportedModel(f"{keys.where}: the tensor blk.0.laurel_l.weight is missing")
    return ModelConfig(
        architecture="gemma3n",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(
            model.rope(dim, theta=THETA),
            model.rope(dim, theta=LOCAL_THETA, local=True),
        ),
        layers=_layers(kinds, reads, model.window(), inner, sparsity),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=keys.number("final_logit_softcapping", SOFT_CAP),
        per_layer_inputs=model.layer_inputs(),
        streams=_checked(
            StreamsSpec(
                count=keys.integer("altup.num_inputs"),
                active=keys.integer("altup.active_idx"),
                scaled=True,
                rank=path.shape[0],
            ),
            keys.where,
        ),
    )


def _gguf_sparsity(keys: Fields, count: int) -> list[float]:
    """The file has how many deviations above the mean the limit is; minus infinity: there is
    none."""
    key = "activation_sparsity_scale"
    if key not in keys:
        return _usual_sparsity(count)
    scales = keys.listed(key, float)
    if len(scales) != count or any(math.isnan(scale) for scale in scales):
        raise keys.wrong(key, f"a list of {count} numbers")
    return [NormalDist().cdf(scale) for scale in scales]


HUB_NAMES = TensorNames(
    {
        **NORM_NAMES.modules,
        "post_per_layer_input_norm": "per_layer_input_norm",
        "altup.correct_output_scale": "altup.output_scale.weight",
    }
)

GEMMA3N = Family(
    "gemma3n",
    ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
    "Gemma 3n (text)",
    _hub,
    hub_names=HUB_NAMES,
    gguf="gemma3n",
    read_gguf=_gguf,
    gguf_names=TensorNames(
        stacked={
            name: (f"{name}.*",) for name in ("altup_projections", "altup_unembed_projections")
        }
    ),
)
