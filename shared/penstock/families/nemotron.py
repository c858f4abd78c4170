"""Nemotron-4 and Minitron: layer norms by 1 + weight, squared relu without a gate, and heads of
which half rotates.

Source: Parmar et al., "Nemotron-4 15B technical report", 2024.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES as GGUF_EXPERTS
from penstock.families.source import OUTPUT, QUERY, UP, HubSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.recurrent_spec import Mamba2Spec, RecurrentSpec


def _nemotron(source: Source) -> ModelConfig:
    # They say the same as head_dim and partial_rotary_factor.
    source.ignore("kv_channels", "rope_percent")
    norm = NormSpec(
        kind="layer",
        eps=source.layer_norm_eps(key="norm_eps"),
        plus_one=isinstance(source, HubSource),  # it is what GGUF files have
        bias=True,
    )
    return ungated(source, "nemotron", norm, biased=False, share=0.5)


def ungated(
    source: Source, name: str, norm: NormSpec, *, biased: bool, share: float | None = None
) -> ModelConfig:
    """Layers with squared relu without a gate. biased, share: whether they have biases, and what of
    a head rotates, where config.json doesn't say."""
    source.activation("relu2", default="relu2")
    layer = LayerSpec(
        attention=AttentionSpec(
            qkv_bias=source.bias(QUERY, default=biased),
            output_bias=source.bias(OUTPUT, default=biased),
        ),
        feed_forward=FeedForwardSpec(
            activation="relu2", gated=False, bias=source.bias(UP, "mlp_bias", biased)
        ),
    )
    return decoder(source, name, source.sizes(), [layer], norm=norm, share=share)


NEMOTRON = Family(
    "nemotron",
    ("NemotronForCausalLM",),
    "Nemotron-4, Minitron",
    of_hub(_nemotron),
    gguf="nemotron",
    read_gguf=of_gguf(_nemotron),
)


# Nemotron-H and Nemotron 3: a layer is Mamba 2, attention without rotary positions, or
# feed-forward, dense or with a mixture of experts; never two of them.
#
# Source: NVIDIA, "Nemotron-H", 2025. Steps in time are limited by `time_step_limit`, as in the
# code that NVIDIA released with the models; `time_step_min` is of training.

LETTERS = {"M": recurrent.LINEAR, "*": recurrent.FULL, "-": "mlp", "E": "moe"}
"""Kinds of layers by their letters in `hybrid_override_pattern`."""

OF_TRAINING = (
    "time_step_min",
    "time_step_max",
    "time_step_floor",
    "rescale_prenorm_residual",
)
OF_COMPUTATION = (
    "chunk_size",
    "use_mamba_kernels",
    "num_logits_to_keep",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "expand",  # heads times their size say it
)
OF_DRAFTS = ("mtp_layers_block_type", "mtp_hybrid_override_pattern", "num_nextn_predict_layers")


def _hub_hybrid(fields: Fields) -> ModelConfig:
    fields.ignore(*OF_TRAINING, *OF_COMPUTATION, *OF_DRAFTS)
    kinds = _kinds(fields)
    older = "attention_head_dim"
    if older in fields:
        fields = fields.completed(head_dim=fields.integer(older))
    sizes = hub.sizes(fields.completed(num_hidden_layers=len(kinds)), default_head_dim=128)
    layers = {
        recurrent.LINEAR: LayerSpec(recurrent=_mamba(fields), halves="mixer"),
        recurrent.FULL: LayerSpec(attention=AttentionSpec(rope=None), halves="mixer"),
        "mlp": LayerSpec(feed_forward=_feed_forward(fields, None), halves="feed_forward"),
    }
    if "moe" in kinds:
        feed_forward = _feed_forward(fields, _experts(fields))
        layers["moe"] = LayerSpec(feed_forward=feed_forward, halves="feed_forward")
    else:
        fields.ignore(*OF_EXPERTS)
    if len(kinds) != sizes["num_layers"]:
        raise UnsupportedModel(
            f"{fields.where}: {len(kinds)} layers are described, and num_hidden_layers is "
            f"{sizes['num_layers']}"
        )
    return ModelConfig(
        architecture="nemotron_h",
        **sizes,
        norm=NormSpec(eps=fields.number("layer_norm_epsilon", fields.number("norm_eps", 1e-5))),
        ropes=(),
        layers=hub.shared(layers[kind] for kind in kinds),
    )


def _kinds(fields: Fields) -> list[str]:
    listed, pattern = "layers_block_type", "hybrid_override_pattern"
    if listed in fields:
        fields.ignore(pattern)
        count = len(fields.listed(listed, str))
        return recurrent.layer_kinds(fields, count, [], *LETTERS.values(), key=listed)
    letters = fields.text(pattern)
    for letter in letters:
        if letter not in LETTERS:
            raise UnsupportedModel(
                f"{fields.where}: {pattern} has {letter!r}; {', '.join(LETTERS)} are served"
            )
    return [LETTERS[letter] for letter in letters]


def _mamba(fields: Fields) -> RecurrentSpec:
    hub.activation(fields, "silu", key="mamba_hidden_act")
    groups = fields.integer("n_groups", 8)
    fields.ignore("mamba_proj_bias")  # use_bias is what counts
    spec = Mamba2Spec(
        heads=fields.integer("mamba_num_heads", 128),
        head_dim=fields.integer("mamba_head_dim", 64),
        groups=groups,
        state=fields.integer("ssm_state_size", 128),
        kernel=fields.integer("conv_kernel", 4),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        norm_groups=groups,
        **recurrent.time_limits(fields),
    )
    return recurrent.checked(spec, fields.where)


def _feed_forward(fields: Fields, experts: ExpertsSpec | None) -> FeedForwardSpec:
    return FeedForwardSpec(
        activation=hub.activation(fields, "relu2", key="mlp_hidden_act", default="relu2"),
        gated=False,
        bias=fields.flag("mlp_bias", False),
        experts=experts,
    )


OF_EXPERTS = (
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "moe_latent_size",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
    "norm_topk_prob",
)


def _experts(fields: Fields) -> ExpertsSpec:
    fields.ignore("n_shared_experts")  # their inner dimension is said of all together
    hub.only(fields, mlp_bias=False)  # transformers' experts have none, and its other parts do
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "n_routed_experts"),
        inner=fields.integer("moe_intermediate_size"),
        latent=fields.optional_integer("moe_latent_size") or 0,
        router="sigmoid",
        normalised=fields.flag("norm_topk_prob", True),
        scale=fields.positive("routed_scaling_factor", 1.0),
        shared_inner=fields.integer("moe_shared_expert_intermediate_size"),
        correction=True,
        groups=fields.integer("n_group", 1),
        active_groups=fields.integer("topk_group", 1),
    )
    bounds.check_expert_groups(fields, experts)
    return experts


NAMES = TensorNames(
    {
        "embeddings": "embed_tokens",
        "norm_f": "norm",
        "norm": "input_layernorm",
        "mixer.conv1d": "recurrent.conv",
        **{
            f"mixer.{each}": f"recurrent.{each}"
            for each in ("in_proj", "A_log", "D", "dt_bias", "norm", "out_proj")
        },
        **{
            f"mixer.{each}": f"self_attn.{each}"
            for each in ("q_proj", "k_proj", "v_proj", "o_proj")
        },
        "mixer.gate": "mlp.router",
        "mixer.fc1_latent_proj": "mlp.latent_down",
        "mixer.fc2_latent_proj": "mlp.latent_up",
        "mixer.gate.e_score_correction_bias": "mlp.router.correction",
        **{
            f"mixer.{file}{each}": f"mlp.{ours}{each}"
            for file, ours in (
                ("", ""),
                ("experts.*.", "experts.*."),
                ("shared_experts.", "shared_expert."),
            )
            for each in ("up_proj", "down_proj")
        },
    }
)


def _gguf_hybrid(model: GGUFMetadata) -> ModelConfig:
    """What a layer is is said by its numbers of KV heads and of inner columns."""
    keys = model.keys
    keys.ignore("rope.freq_base", "rope.dimension_count")
    count = bounds.layers_without_drafts(keys)
    heads = recurrent.gguf_per_layer(keys, recurrent.GGUF_KV_HEADS, count)
    inner = recurrent.gguf_per_layer(keys, recurrent.GGUF_INNER, count)
    mamba = recurrent.gguf_mamba2(
        model,
        conv_bias=model.has_in_any("ssm_conv1d.bias", count),
        bias=model.has_in_any("ssm_in.bias", count),
        norm_groups=keys.integer("ssm.group_count"),
    )
    feed_forward = FeedForwardSpec(
        activation="relu2",
        gated=False,
        bias=model.has_in_any("ffn_up.bias", count),
        experts=_gguf_experts(model) if keys.integer("expert_count", 0) else None,
    )
    attending = LayerSpec(attention=AttentionSpec(rope=None), halves="mixer")
    mixing = LayerSpec(recurrent=mamba, halves="mixer")
    inner_only = LayerSpec(feed_forward=feed_forward, halves="feed_forward")
    layers = [
        inner_only if columns else attending if kv_heads else mixing
        for columns, kv_heads in zip(inner, heads, strict=True)
    ]
    model = recurrent.gguf_of_one_size(model, count)
    return ModelConfig(
        architecture="nemotron_h",
        **(model.sizes() | {"num_layers": count}),
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(),
        layers=hub.shared(layers),
    )


def _gguf_experts(model: GGUFMetadata) -> ExpertsSpec:
    keys = model.keys
    hub.only(keys, expert_gating_func=recurrent.GGUF_SIGMOID)
    keys.ignore("expert_shared_count")  # their inner dimension is said of all together
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=keys.integer("expert_feed_forward_length"),
        latent=keys.integer("moe_latent_size", 0),
        router="sigmoid",
        normalised=keys.flag("expert_weights_norm", False),
        scale=keys.positive("expert_weights_scale", 1.0),
        shared_inner=keys.integer("expert_shared_feed_forward_length"),
        correction=True,
        groups=keys.integer("expert_group_count", 1),
        active_groups=keys.integer("expert_group_used_count", 1),
    )
    bounds.check_expert_groups(keys, experts)
    return experts


NEMOTRON_H = Family(
    "nemotron_h",
    ("NemotronHForCausalLM",),
    "Nemotron-H, Nemotron 3",
    _hub_hybrid,
    hub_names=NAMES,
    gguf="nemotron_h",
    gguf_also=("nemotron_h_moe",),
    read_gguf=_gguf_hybrid,
    gguf_names=TensorNames(stacked=GGUF_EXPERTS.stacked, layers_for_drafts=True),
)
