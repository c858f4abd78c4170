"""MiniMax M3: attention to blocks of positions that an index chooses, in most layers, and M2's
experts, with gpt-oss's activation, plus a shared one.

Sources: MiniMax, "MiniMax M3", 2026; for GGUF files, llama.cpp's conversion/minimax.py and
llama-arch.cpp.
"""

from __future__ import annotations

import math

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.deepseek import MAX_SIZE
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata, rounded
from penstock.families.gpt_oss import CLAMP
from penstock.families.mistral import MIXTRAL_MODULES
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.block_index_spec import BlockIndexSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock_families.minimax_m2 import SIGMOID

ALPHA = 1.702
"""Factor of the gate in the activation's sigmoid, in all releases."""
SPARSE = "minimax_m3_sparse"
MAX_BLOCK = 1 << 16
MAX_BLOCKS = 1 << 16
"""Most positions of a block, and most blocks that a token reads."""

_INDEX = {"q_proj": "query", "k_proj": "key", "q_norm": "query_norm", "k_norm": "key_norm"}
_GATED = ("gate_proj", "up_proj")
_SHARED = {f"shared_experts.{each}": f"mlp.shared_expert.{each}" for each in (*_GATED, "down_proj")}
NAMES = TensorNames(
    {
        **MIXTRAL_MODULES,
        "block_sparse_moe.e_score_correction_bias": "mlp.router.correction",
        **{f"block_sparse_moe.{theirs}": ours for theirs, ours in _SHARED.items()},
        **{f"self_attn.index_{theirs}": f"self_attn.index_{_INDEX[theirs]}" for theirs in _INDEX},
        # As transformers calls modules that it saves: of layers without experts, and the decoder's
        # where it is alone.
        **{f"block_sparse_moe.{each}": f"mlp.{each}" for each in (*_GATED, "down_proj")},
        "mlp.gate": "mlp.router",
        "mlp.gate.e_score_correction_bias": "mlp.router.correction",
        **{f"mlp.{theirs}": ours for theirs, ours in _SHARED.items()},
        **{f"self_attn.indexer.{theirs}": f"self_attn.index_{_INDEX[theirs]}" for theirs in _INDEX},
    },
    fused={
        "mlp.gate_up_proj": tuple(f"mlp.{each}" for each in _GATED),
        "mlp.shared_experts.gate_up_proj": tuple(f"mlp.shared_expert.{each}" for each in _GATED),
    },
    stacked={
        "mlp.experts.gate_up_proj": tuple(f"mlp.experts.*.{each}" for each in _GATED),
        "mlp.experts.down_proj": ("mlp.experts.*.down_proj",),
    },
    layers_for_drafts=True,
)


def _hub(fields: Fields) -> ModelConfig:
    _activation(fields)
    inner = fields.integer("dense_intermediate_size", 12_288)
    sizes = hub.sizes(fields, inner=inner)
    layers, head = sizes["num_layers"], sizes["head_dim"]
    fields.ignore("router_jitter_noise")  # of training
    fields.ignore("num_mtp_modules", "num_nextn_predict_layers")  # for drafts only
    fields.ignore("moe_intermediate_size")  # the original code has it in addition to the one below
    hub.only(
        fields,
        attention_output_gate=False,
        n_shared_experts=1,
        qk_norm_type="per_head",
        scoring_func="sigmoid",
        use_gemma_norm=True,
        use_qk_norm=True,
        use_routing_bias=True,
    )
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "num_local_experts"),
        inner=fields.integer("intermediate_size"),
        shared_inner=fields.integer("shared_intermediate_size", 3072),
        router="sigmoid",
        correction=True,
        scale=fields.positive("routed_scaling_factor", 2.0),
    )
    section = fields.section("sparse_attention_config")
    choosing = _choosing(fields, section, layers)
    index = _index(fields, section)
    if any(choosing):
        _check_heads(fields, index, sizes["num_kv_heads"])
    hub.refuse_unknown(section, ())
    # As in M2.
    share = math.nextafter(fields.integer("rotary_dim", 64) / head, math.inf)
    return ModelConfig(
        architecture="minimax_m3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6), plus_one=True),
        ropes=(hub.rope(fields, head, theta=5_000_000.0, share=share),),
        layers=hub.shared(
            _layer(index if chooses else None, experts if sparse else None)
            for chooses, sparse in zip(choosing, _with_experts(fields, layers), strict=True)
        ),
    )


def _layer(index: BlockIndexSpec | None, experts: ExpertsSpec | None) -> LayerSpec:
    return LayerSpec(
        attention=AttentionSpec(norm="head", blocks=index),
        feed_forward=FeedForwardSpec(activation="clamped_swiglu", experts=experts),
    )


def _check_heads(fields: Fields, index: BlockIndexSpec, kv_heads: int) -> None:
    if index.heads != kv_heads:
        raise UnsupportedModel(
            f"{fields.where}: the index has {index.heads} heads, and attention {kv_heads} KV heads;"
            " each chooses for one of these, so that as many are needed"
        )


def _activation(fields: Fields) -> None:
    """Raises UnsupportedModel for another one than all releases have. transformers computes it
    whatever `hidden_act` says, and writes silu there."""
    named = fields.text("hidden_act", "silu")
    if named not in ("swigluoai", "silu"):
        raise fields.wrong("hidden_act", "swigluoai or silu")
    for key, only in (("swiglu_alpha", ALPHA), ("swiglu_limit", CLAMP)):
        if fields.number(key, only) != only:
            raise fields.wrong(key, f"{only:g}")


def _index(fields: Fields, section: Fields) -> BlockIndexSpec:
    """Returns the index of the layers that have one. The section's settings take precedence over
    the same keys outside it."""
    hub.only(
        section,
        sparse_init_block=0,
        sparse_score_type="max",
        use_sparse_attention=True,
    )
    # Which layers have no values of an index: the releases' indexes have none at all.
    if "sparse_disable_index_value" in section:
        frequency = section.values.get("sparse_attention_freq")
        if section.values["sparse_disable_index_value"] != frequency:
            raise section.wrong("sparse_disable_index_value", "that of sparse_attention_freq")

    def size(theirs: str, older: str, default: int, most: int) -> int:
        found = section.integer(older, fields.integer(theirs, default))
        if not 1 <= found <= most:
            where, key = (section, older) if older in section else (fields, theirs)
            raise UnsupportedModel(f"{where.where}: {key} is {found}; 1 to {most} are allowed")
        return found

    most = size("index_topk_blocks", "sparse_topk_blocks", 16, MAX_BLOCKS)
    return BlockIndexSpec(
        heads=size("index_n_heads", "sparse_num_index_heads", 4, MAX_SIZE),
        size=size("index_head_dim", "sparse_index_dim", 128, MAX_SIZE),
        block=size("index_block_size", "sparse_block_size", 128, MAX_BLOCK),
        most=most,
        # A token reads its own block in all releases: without it, some would read nothing.
        local=size("index_local_blocks", "sparse_local_block", 1, most),
    )


def _choosing(fields: Fields, section: Fields, count: int) -> list[bool]:
    """Whether each layer has an index."""
    key = "layer_types"
    if key in fields:
        kinds = fields.listed(key, str)
        if len(kinds) != count or set(kinds) - {SPARSE, hub.FULL}:
            raise fields.wrong(key, f"a list of {count} times {SPARSE!r} or {hub.FULL!r}")
        section.ignore("sparse_attention_freq")
        return [kind == SPARSE for kind in kinds]
    if "sparse_attention_freq" not in section:
        return [False] * count
    return hub.flags(section, "sparse_attention_freq", count)


def _with_experts(fields: Fields, count: int) -> list[bool]:
    """Whether each layer has experts."""
    fields.ignore("first_k_dense_replace")  # says what moe_layer_freq says
    if "mlp_layer_types" in fields or "moe_layer_freq" not in fields:
        return hub.sparse_behind(fields.with_absent({"first_k_dense_replace": 0}), count)
    return hub.flags(fields, "moe_layer_freq", count)


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """Raises UnsupportedModel for a file without an index, as early converters wrote it. The norms'
    weights are one more than config.json's."""
    keys, sizes = model.keys, model.sizes()
    hub.only(keys, expert_gating_func=SIGMOID, expert_shared_count=1, expert_weights_norm=True)
    inner = keys.integer("expert_feed_forward_length")
    experts = ExpertsSpec(
        **model.expert_counts(),
        inner=inner,
        shared_inner=inner,
        router="sigmoid",
        correction=True,
        scale=rounded(keys.positive("expert_weights_scale")),
    )
    most = _index_size(keys, "top_k", MAX_BLOCKS)
    index = BlockIndexSpec(
        heads=_index_size(keys, "head_count", MAX_SIZE),
        size=_index_size(keys, "key_length", MAX_SIZE),
        block=_index_size(keys, "block_size", MAX_BLOCK),
        most=most,
        local=_index_size(keys, "local_blocks", most),
    )
    _check_heads(keys, index, sizes["num_kv_heads"])
    layers, dense = sizes["num_layers"], keys.integer("leading_dense_block_count", 0)
    return ModelConfig(
        architecture="minimax_m3",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        # Layers with experts are those with an index.
        layers=hub.shared(
            _layer(None, None) if number < dense else _layer(index, experts)
            for number in range(layers)
        ),
    )


def _index_size(keys: Fields, name: str, most: int) -> int:
    key = f"attention.indexer.{name}"
    found = keys.integer(key)
    if not 1 <= found <= most:
        raise UnsupportedModel(f"{keys.where}: {key} is {found}; 1 to {most} are allowed")
    return found


MINIMAX_M3 = Family(
    "minimax_m3",
    (
        "MiniMaxM3VLForCausalLM",
        "MiniMaxM3ForCausalLM",
        "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
    ),
    "MiniMax M3",
    _hub,
    hub_names=NAMES,
    gguf="minimax-m3",
    read_gguf=_gguf,
    gguf_names=GGUF_NAMES,
)
