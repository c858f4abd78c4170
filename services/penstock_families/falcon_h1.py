"""Falcon-H1: in each layer, attention and Mamba 2 side by side. Inputs and outputs of both, and of
the feed-forward, have multipliers, which become factors of weights; those of queries and keys are a
scale of scores.

Source: Zuo et al., "Falcon-H1: a family of hybrid-head language models redefining efficiency and
performance", 2025.
"""

from __future__ import annotations

import math

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.granite import MAMBA
from penstock.families.source import GGUFSource, HubSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, RowFactors
from penstock.model.recurrent_spec import Mamba2Spec

OF_COMPUTATION = ("mamba_chunk_size", "num_logits_to_keep", "mamba_use_mlp", "attn_layer_indices")


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    fields.ignore(*OF_COMPUTATION)
    # A bias would need another factor than its product.
    hub.only(fields, attention_bias=False, mamba_proj_bias=False, mlp_bias=False)
    sizes, mamba = hub.sizes(fields), _mamba(fields)
    inputs = _number(fields, "attention_in_multiplier")
    scores = inputs * inputs * _number(fields, "key_multiplier")
    layer = LayerSpec(
        attention=AttentionSpec(scale=scores * sizes["head_dim"] ** -0.5),
        recurrent=mamba,
        attends_beside=True,
        weight_factors=tuple(
            RowFactors(module=module, parts=parts)
            for module, parts in _factors(fields, sizes, mamba, inputs).items()
            if any(factor != 1.0 for _, factor in parts)
        ),
    )
    return decoder(
        HubSource(fields),
        "falcon_h1",
        sizes,
        [layer],
        eps=1e-5,
        embedding_multiplier=fields.number("embedding_multiplier", 1.0),
        logits_multiplier=fields.number("lm_head_multiplier", 1.0),
    )


def _number(fields: Fields, key: str) -> float:
    found = fields.number(key, 1.0)
    if not (math.isfinite(found) and found > 0):
        raise fields.wrong(key, "a positive number")
    return found


def _mamba(fields: Fields) -> Mamba2Spec:
    heads, hidden = fields.integer("mamba_n_heads", 128), fields.integer("hidden_size")
    inner = fields.integer("mamba_d_ssm", fields.integer("mamba_expand", 2) * hidden)
    named = fields.values.get("mamba_d_head", "auto")
    dim = inner // max(heads, 1) if named in ("auto", None) else fields.integer("mamba_d_head")
    if dim * heads != inner:
        raise UnsupportedModel(
            f"{fields.where}: {heads} Mamba heads of {dim} don't make up the inner size {inner}"
        )
    groups, normed = fields.integer("mamba_n_groups", 1), fields.flag("mamba_rms_norm", False)
    first = fields.flag("mamba_norm_before_gate", True)
    if normed and first:
        raise fields.wrong("mamba_norm_before_gate", "false where mamba_rms_norm is true")
    spec = Mamba2Spec(
        heads=heads,
        head_dim=dim,
        groups=groups,
        state=fields.integer("mamba_d_state", 256),
        kernel=fields.integer("mamba_d_conv", 4),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("projectors_bias", False),
        normed=normed,
        norm_groups=groups if normed else 1,
        **recurrent.time_limits(fields),
    )
    recurrent.checked(spec, fields.where)
    return spec


def _factors(
    fields: Fields, sizes: dict[str, int], mamba: Mamba2Spec, inputs: float
) -> dict[str, tuple[tuple[int, float], ...]]:
    """Factors of rows, by module. inputs: the factor of the attention's input."""
    hidden, maps = sizes["hidden_size"], mamba.groups * mamba.state
    gate, down = _several(fields, "mlp_multipliers", 2)
    enters = _number(fields, "ssm_in_multiplier")
    rows = (mamba.inner, mamba.inner, maps, maps, mamba.heads)
    parts = _several(fields, "ssm_multipliers", len(rows))
    return {
        "self_attn.o_proj": ((hidden, inputs * _number(fields, "attention_out_multiplier")),),
        "recurrent.in_proj": tuple(
            (count, enters * factor) for count, factor in zip(rows, parts, strict=True)
        ),
        "recurrent.out_proj": ((hidden, _number(fields, "ssm_out_multiplier")),),
        "mlp.gate_proj": ((sizes["intermediate_size"], gate),),
        "mlp.down_proj": ((hidden, down),),
    }


def _several(fields: Fields, key: str, count: int) -> list[float]:
    if key not in fields:
        return [1.0] * count
    fields.ignore(key)  # asked for here
    found = fields.values[key]
    if not isinstance(found, (list, tuple)) or len(found) != count:
        raise fields.wrong(key, f"a list of {count} numbers")
    named = Fields(
        {f"number {at}": each for at, each in enumerate(found)}, f"{fields.where}: {key}"
    )
    return [_number(named, f"number {at}") for at in range(count)]


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """The converter has multiplied all weights already."""
    sizes = model.sizes()
    groups, normed = model.keys.integer("ssm.group_count"), model.has("ssm_norm.weight")
    mamba = recurrent.gguf_mamba2(
        model,
        conv_bias=model.has("ssm_conv1d.bias"),
        bias=model.has("ssm_in.bias"),
        normed=normed,
        norm_groups=groups if normed else 1,
    )
    layer = LayerSpec(
        recurrent=mamba, attends_beside=True, feed_forward=FeedForwardSpec(bias=False)
    )
    return decoder(GGUFSource(model), "falcon_h1", sizes, [layer])


FALCON_H1 = Family(
    "falcon_h1",
    ("FalconH1ForCausalLM",),
    "Falcon-H1",
    _hub,
    hub_names=TensorNames(
        {
            **MAMBA,
            "final_layernorm": "norm",
            "pre_ff_layernorm": "post_attention_layernorm",
            **{
                f"feed_forward.{each}": f"mlp.{each}"
                for each in ("gate_proj", "up_proj", "down_proj")
            },
        }
    ),
    gguf="falcon-h1",
    read_gguf=_gguf,
)
