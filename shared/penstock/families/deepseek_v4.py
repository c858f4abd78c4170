"""DeepSeek V4: attention to the last tokens and to entries that stand for more of them, residuals
that each layer mixes, and experts that in the first layers a token's id chooses.

Sources: DeepSeek-AI, "DeepSeek-V4", 2026; for what the releases leave open, transformers' class;
for the layers that draft, the makers' inference/model.py (MTPBlock).
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import MAX_SIZE, one_of
from penstock.families.deepseek_v4_gguf import GGUF_NAMES, said_in_gguf
from penstock.families.deepseek_v32 import checked_index
from penstock.families.family import OF_EMBEDDING, OF_HIDDEN, Family, OwnHead
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.rope_scaling import read_scaling
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec, CompressedSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    ExpertsSpec,
    FeedForwardSpec,
    HyperConnectionsSpec,
    LayerSpec,
    NormSpec,
)
from penstock.model.rope_spec import RopeSpec

MAX_ROUNDS = 1 << 10
MAX_RATE = 1 << 16
"""Most rounds of normalising a matrix, and most tokens of an entry."""

WINDOWED, INDEXED, ALL = (
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
)
"""Kinds of layers: without entries, with some that an index chooses, with all of them."""
KIND_OF_RATIO = {0: WINDOWED, 4: INDEXED, 128: ALL}
MAIN, COMPRESS = 0, 1
"""Places of the rotations, of layers without entries and with them."""


def _read(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    one_of(fields, "mlp_bias", fields.flag("mlp_bias", False), False)
    sizes = hub.sizes(fields, default_head_dim=512, inner=fields.integer("moe_intermediate_size"))
    one_of(fields, "num_key_value_heads", sizes["num_kv_heads"], 1)
    eps = fields.number("rms_norm_eps", 1e-6)
    kinds = _kinds(fields, sizes["num_layers"])
    attention = {kind: _attention(fields, kind, sizes) for kind in dict.fromkeys(kinds)}
    limit = fields.number("swiglu_limit", 10.0)
    if limit <= 0:
        raise fields.wrong("swiglu_limit", "a positive number")
    layers = [
        LayerSpec(
            attention=attention[kind],
            feed_forward=FeedForwardSpec(
                gate_limit=limit, experts=_experts(fields, by_token=by_token)
            ),
        )
        for kind, by_token in zip(kinds, _by_token(fields, len(kinds)), strict=True)
    ]
    # What only drafts need, and how files of experts are quantised.
    fields.ignore("num_nextn_predict_layers", "expert_dtype")
    return ModelConfig(
        architecture="deepseek_v4",
        **sizes,
        norm=NormSpec(eps=eps),
        ropes=_ropes(fields, sizes["head_dim"]),
        layers=hub.shared(layers),
        hyper_connections=_hyper_connections(fields),
    )


def _kinds(fields: Fields, count: int) -> list[str]:
    """Each layer's kind, of a list of kinds, or of tokens that an entry stands for. Lists may go on
    with layers that draft."""
    if "layer_types" in fields:
        fields.ignore("compress_ratios")
        kinds = fields.listed("layer_types", str)
    elif "compress_ratios" in fields:
        ratios = fields.listed("compress_ratios", int)
        kinds = [KIND_OF_RATIO.get(ratio, str(ratio)) for ratio in ratios]
    else:
        kinds = [ALL, ALL, *(INDEXED if each % 2 else ALL for each in range(count))]
    unknown = sorted(set(kinds) - set(KIND_OF_RATIO.values()))
    if unknown:
        raise UnsupportedModel(
            f"{fields.where}: a layer's attention is {unknown[0][:80]!r}; served are "
            + ", ".join(f"{kind} ({ratio})" for ratio, kind in KIND_OF_RATIO.items())
        )
    if len(kinds) < count:
        raise UnsupportedModel(
            f"{fields.where}: the attention of {len(kinds)} layers is said, and there are {count}"
        )
    return kinds[:count]


def _by_token(fields: Fields, count: int) -> list[bool]:
    """Whether a token's id chooses each layer's experts."""
    key = "mlp_layer_types"
    if key not in fields:
        first = fields.integer("num_hash_layers", 3)
        return [number < first for number in range(count)]
    fields.ignore("num_hash_layers")
    kinds = fields.listed(key, str)[:count]
    if len(kinds) < count or set(kinds) - {"hash_moe", "moe"}:
        raise fields.wrong(key, f"a list of {count} times 'hash_moe' or 'moe'")
    return [kind == "hash_moe" for kind in kinds]


def _attention(fields: Fields, kind: str, sizes: dict[str, int]) -> AttentionSpec:
    rates = fields.section("compress_rates")
    spec = CompressedSpec(
        rate={
            WINDOWED: 0,
            INDEXED: rates.integer(INDEXED, fields.integer("compress_rate_csa", 4)),
            ALL: rates.integer(ALL, fields.integer("compress_rate_hca", 128)),
        }[kind],
        overlaps=kind == INDEXED,
        index=None
        if kind != INDEXED
        else checked_index(
            fields.where,
            fields.integer("index_n_heads", 64),
            fields.integer("index_head_dim", 128),
            fields.integer("index_topk", 512),
        ),
        query_rank=fields.integer("q_lora_rank", 1024),
        groups=fields.integer("o_groups", 8),
        group_rank=fields.integer("o_lora_rank", 1024),
    )
    _check(fields, spec, kind, sizes)
    return AttentionSpec(
        window=hub.window(fields),
        rope=MAIN if kind == WINDOWED else COMPRESS,
        compressed=spec,
        sinks=True,
    )


def _check(fields: Fields, spec: CompressedSpec, kind: str, sizes: dict[str, int]) -> None:
    if kind != WINDOWED and not 1 <= spec.rate <= MAX_RATE:
        raise UnsupportedModel(
            f"{fields.where}: an entry stands for {spec.rate} tokens in layers of {kind}; 1 to "
            f"{MAX_RATE} are allowed"
        )
    for key, size in (("q_lora_rank", spec.query_rank), ("o_lora_rank", spec.group_rank)):
        if not 1 <= size <= MAX_SIZE:
            raise UnsupportedModel(f"{fields.where}: {key} is {size}; 1 to {MAX_SIZE} are allowed")
    heads = sizes["num_heads"]
    if spec.groups < 1 or heads % spec.groups:
        raise UnsupportedModel(
            f"{fields.where}: o_groups is {spec.groups}; it has to divide {heads} attention heads"
        )


def _experts(fields: Fields, *, by_token: bool) -> ExpertsSpec:
    one_of(fields, "topk_method", fields.text("topk_method", "noaux_tc"), "noaux_tc")
    scores = fields.text("scoring_func", "sqrtsoftplus")
    one_of(fields, "scoring_func", scores, "sqrtsoftplus")
    one_of(fields, "norm_topk_prob", fields.flag("norm_topk_prob", True), True)
    one_of(fields, "n_shared_experts", fields.integer("n_shared_experts", 1), 1)
    inner = fields.integer("moe_intermediate_size")
    return ExpertsSpec(
        **hub.expert_counts(fields, "n_routed_experts", "num_local_experts"),
        inner=inner,
        router="sqrt_softplus",
        by_token=by_token,
        correction=not by_token,
        scale=fields.positive("routed_scaling_factor", 1.5),
        shared_inner=inner,
    )


def _hyper_connections(fields: Fields) -> HyperConnectionsSpec:
    found = HyperConnectionsSpec(
        count=fields.integer("hc_mult", 4),
        rounds=fields.integer("hc_sinkhorn_iters", 20),
        eps=fields.number("hc_eps", 1e-6),
    )
    for key, value, most in (
        ("hc_mult", found.count, bounds.MAX_STREAMS),
        ("hc_sinkhorn_iters", found.rounds, MAX_ROUNDS),
    ):
        if not 1 <= value <= most:
            raise UnsupportedModel(f"{fields.where}: {key} is {value}; 1 to {most} are allowed")
    if found.eps < 0:
        raise fields.wrong("hc_eps", "a number that isn't negative")
    return found


def _ropes(fields: Fields, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """The rotation of layers without entries, and the stretched one of those with entries, whose
    cosines and sines have no factor unless one is said."""
    rotating = fields.integer("qk_rope_head_dim", head_dim // 8)
    share = fields.number("partial_rotary_factor", rotating / head_dim)
    theta = fields.number("rope_theta", 10_000.0)
    stretched = fields.number("compress_rope_theta", 160_000.0)
    settings = fields.section("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    main, compress = Fields({}, fields.where), settings
    if "main" in settings and "compress" in settings:
        main, compress = settings.section("main"), settings.section("compress")
    else:
        own = {"rope_theta": stretched, "partial_rotary_factor": share}
        compress = settings.completed(attention_factor=1.0).replaced(own)
    return (
        _rope(fields, main.completed(rope_theta=theta), head_dim, share),
        _rope(fields, compress.completed(rope_theta=stretched), head_dim, share),
    )


def _rope(fields: Fields, settings: Fields, head_dim: int, share: float) -> RopeSpec:
    dims = int(head_dim * settings.number("partial_rotary_factor", share))
    # Where there is an index, its heads rotate in as many numbers.
    most = min(head_dim, fields.integer("index_head_dim", 128))
    if not 0 < dims <= most or dims % 2:
        raise UnsupportedModel(
            f"{fields.where}: {dims} numbers of a head rotate (qk_rope_head_dim); 2 to {most} are"
            " allowed, and an even number"
        )
    theta = settings.number("rope_theta")
    settings.ignore("attention_factor")
    found = RopeSpec(theta=theta, dims=dims, scaling=read_scaling(settings, fields, dims))
    hub.refuse_unknown(settings, hub.ROPE_HARMLESS)
    return found


def _drafting(model: ModelConfig) -> LayerSpec:
    """A layer that drafts: without entries, and with experts that the router chooses."""
    last = model.layer(model.num_layers - 1)
    compressed, experts = last.attention.compressed, last.feed_forward.experts
    if compressed is None or experts is None:
        raise UnsupportedModel("a DeepSeek-V4 without entries or without experts drafts nothing")
    without = replace(compressed, rate=0, overlaps=False, index=None)
    chosen = replace(experts, by_token=False, correction=True)
    return replace(
        last,
        attention=replace(last.attention, rope=MAIN, compressed=without),
        feed_forward=replace(last.feed_forward, experts=chosen),
    )


def _read_gguf(model: GGUFMetadata) -> ModelConfig:
    return _read(said_in_gguf(model))


_PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_CONNECTIONS = {
    f"hc_{half}_{part}": f"{half}_hc.{part}"
    for half in ("attn", "ffn")
    for part in ("fn", "base", "scale")
}
_COMPRESSOR = {"wkv": "kv_proj", "wgate": "gate_proj", "norm": "kv_norm", "ape": "position_bias"}
_OF_RELEASES = {
    "embed": "embed_tokens",
    "head": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn.wq_a": "self_attn.q_a_proj",
    "attn.q_norm": "self_attn.q_a_norm",
    "attn.wq_b": "self_attn.q_proj",
    "attn.wkv": "self_attn.kv_proj",
    "attn.kv_norm": "self_attn.kv_norm",
    "attn.norm": "self_attn.kv_norm",  # as transformers writes it
    "attn.wo_a": "self_attn.o_a_proj",
    "attn.wo_b": "self_attn.o_proj",
    "attn.attn_sink": "self_attn.sinks.weight",
    "attn.indexer.wq_b": "self_attn.compressor.indexer.q_b_proj",
    "attn.indexer.weights_proj": "self_attn.compressor.indexer.scorer.weights_proj",
    **{
        f"attn.{theirs}.{part}": f"self_attn.{ours}.{own}"
        for theirs, ours in (
            ("compressor", "compressor"),
            ("indexer.compressor", "compressor.indexer"),
        )
        for part, own in _COMPRESSOR.items()
    },
    **_CONNECTIONS,
    **{f"hc_head_{part}": f"hc_head.{part}" for part in ("fn", "base", "scale")},
    "ffn.gate": "mlp.router",
    "ffn.gate.bias": "mlp.router.correction",
    "ffn.gate.tid2eid": "mlp.router.by_token",
    **{
        f"ffn.{theirs}.{part}": f"mlp.{ours}.{own}"
        for theirs, ours in (("experts.*", "experts.*"), ("shared_experts", "shared_expert"))
        for part, own in _PROJECTIONS.items()
    },
}
"""What DeepSeek calls modules."""
_OF_TRANSFORMERS = {
    "self_attn.q_b_proj": "self_attn.q_proj",
    "self_attn.o_b_proj": "self_attn.o_proj",
    "self_attn.sinks": "self_attn.sinks.weight",
    **{f"hc_head.hc_{part}": f"hc_head.{part}" for part in ("fn", "base", "scale")},
    "mlp.gate": "mlp.router",
    "mlp.gate.e_score_correction_bias": "mlp.router.correction",
    "mlp.gate.tid2eid": "mlp.router.by_token",
    **{f"mlp.shared_experts.{each}": f"mlp.shared_expert.{each}" for each in _PROJECTIONS.values()},
}
_STACKED = {
    "mlp.experts.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
    "mlp.experts.down_proj": ("mlp.experts.*.down_proj",),
}

OWN_HEAD = OwnHead(
    "mtp.{}.",
    {
        "mtp.{}.enorm": "enorm",
        "mtp.{}.hnorm": "hnorm",
        "mtp.{}.e_proj": OF_EMBEDDING,
        "mtp.{}.h_proj": OF_HIDDEN,
        "mtp.{}.norm": "norm",
        "mtp.{}.emb.tok_emb": "embed_tokens",
        "mtp.{}.head": "lm_head",
        **{f"mtp.{{}}.hc_head_{part}": f"hc_head.{part}" for part in ("fn", "base", "scale")},
    },
    normed_input=False,
    spec=_drafting,
)
"""A head that reads all of the model's residuals, each by itself."""

DEEPSEEK_V4 = Family(
    "deepseek_v4",
    ("DeepseekV4ForCausalLM",),
    "DeepSeek-V4",
    _read,
    gguf="deepseek4",
    read_gguf=_read_gguf,
    hub_names=TensorNames({**_OF_RELEASES, **_OF_TRANSFORMERS}, stacked=_STACKED),
    gguf_names=GGUF_NAMES,
    own_head=OWN_HEAD,
)
