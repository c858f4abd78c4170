"""DeepSeek V3.2 and GLM-5: attention over latents that reads the tokens that an index has chosen.

Source: DeepSeek-AI, "DeepSeek-V3.2", 2025. GLM-5 lets layers share a choice ("IndexCache", 2026,
arXiv 2603.12201).
"""

from __future__ import annotations

from dataclasses import replace as with_other

from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.deepseek import (
    GGUF_NAMES,
    MAX_SIZE,
    NAMES,
    corrected_experts,
    dense_layers,
    gguf_model,
    latent_model,
    one_of,
)
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.attention_spec import IndexSpec
from penstock.model.config import ModelConfig

MAX_TOKENS = 1 << 20
"""Most tokens that an index may choose."""


def _hub_deepseek(fields: Fields) -> ModelConfig:
    experts = corrected_experts(fields, groups=8, active_groups=4, scale=2.5)
    dense = dense_layers(fields, 3)
    rotation = fields.flag("indexer_rope_interleave", False)
    one_of(fields, "indexer_rope_interleave", rotation, False)
    model = latent_model(fields, "deepseek_v32", experts, dense=dense)
    return _indexed(fields, model, _index(fields, heads=64), [False] * model.num_layers)


def _hub_glm(fields: Fields) -> ModelConfig:
    experts = corrected_experts(fields, scale=2.5)
    dense = dense_layers(fields, 3)
    rotation = fields.flag("indexer_rope_interleave", True)
    one_of(fields, "indexer_rope_interleave", rotation, True)
    model = latent_model(fields, "glm_moe_dsa", experts, dense=dense, eps=1e-5)
    shared = _shared(fields, model.num_layers)
    return _indexed(fields, model, _index(fields, heads=32), shared)


def _index(fields: Fields, *, heads: int) -> IndexSpec:
    """heads: where config.json doesn't say it."""
    return checked_index(
        fields.where,
        fields.integer("index_n_heads", heads),
        fields.integer("index_head_dim", 128),
        fields.integer("index_topk", 2048),
    )


def checked_index(where: str, heads: int, size: int, most: int) -> IndexSpec:
    """Returns an index of so many heads of so many numbers, which chooses so many tokens or
    entries. Raises UnsupportedModel."""
    if not 0 < min(heads, size) <= max(heads, size) <= MAX_SIZE:
        raise UnsupportedModel(
            f"{where}: an index has {heads} heads of {size} numbers; 1 to {MAX_SIZE} are allowed"
        )
    if not 0 < most <= MAX_TOKENS:
        raise UnsupportedModel(
            f"{where}: an index chooses {most} tokens; 1 to {MAX_TOKENS} are allowed"
        )
    return IndexSpec(heads=heads, size=size, most=most)


def _shared(fields: Fields, layers: int) -> list[bool]:
    """Returns for each layer whether it reads what one before it has chosen: as a list says it, or
    a text of letters, or how far the layers with an index are apart."""
    if "indexer_types" in fields:
        fields.ignore("index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
        key, names = "indexer_types", {"full": False, "shared": True}
        found = fields.listed(key, str)
    elif "index_topk_pattern" in fields:
        fields.ignore("index_topk_freq", "index_skip_topk_offset")
        key, names = "index_topk_pattern", {"F": False, "S": True}
        found = list(fields.text(key))
    else:
        apart = max(fields.integer("index_topk_freq", 1), 1)
        first = fields.integer("index_skip_topk_offset", 2)
        return [max(number - first + 1, 0) % apart > 0 for number in range(layers)]
    if len(found) != layers or not names.keys() >= set(found):
        raise fields.wrong(key, f"one of {' and '.join(names)} for each of {layers} layers")
    return [names[each] for each in found]


def _indexed(
    fields: Fields, model: ModelConfig, index: IndexSpec, shared: list[bool]
) -> ModelConfig:
    """The model with an index in each layer, or a share in one."""
    latent = model.latent
    if latent is None or not latent.query_rank:
        raise UnsupportedModel(f"{fields.where}: q_lora_rank is 0; an index needs such a vector")
    if latent.rotating > index.size:
        raise UnsupportedModel(
            f"{fields.where}: index_head_dim is {index.size}, less than the {latent.rotating}"
            " numbers that rotate (qk_rope_head_dim)"
        )
    if shared[0]:
        raise UnsupportedModel(
            f"{fields.where}: the first layer shares a choice of tokens; there is none before it"
        )
    kinds = "layer_types"
    if kinds in fields and set(fields.listed(kinds, str)) != {"deepseek_sparse_attention"}:
        raise fields.wrong(kinds, "deepseek_sparse_attention for each layer")
    layers = []
    for number, reads in enumerate(shared):
        layer = model.layer(number)
        attention = replace(layer.attention, index=replace(index, shared=reads))
        layers.append(replace(layer, attention=attention))
    return replace(model, layers=hub.shared(layers))


def _gguf_deepseek(model: GGUFMetadata) -> ModelConfig:
    return _gguf(model, "deepseek_v32")


def _gguf_glm(model: GGUFMetadata) -> ModelConfig:
    return _gguf(model, "glm_moe_dsa")


def _gguf(model: GGUFMetadata, name: str) -> ModelConfig:
    """A layer without the tensors of an index shares a choice."""
    keys = model.keys
    found = gguf_model(model)
    index = checked_index(
        keys.where,
        keys.integer("attention.indexer.head_count"),
        keys.integer("attention.indexer.key_length"),
        keys.integer("attention.indexer.top_k"),
    )
    tensors = [f"blk.{number}.indexer.attn_k.weight" for number in range(found.num_layers)]
    shared = [name not in model.tensors for name in tensors]
    return _indexed(keys, replace(found, architecture=name), index, shared)


_MODULES = {
    "self_attn.indexer.wq_b": "self_attn.index_query",
    "self_attn.indexer.wk": "self_attn.index_key",
    "self_attn.indexer.k_norm": "self_attn.index_key_norm",
    "self_attn.indexer.weights_proj": "self_attn.index_weights",
}
_NAMES = with_other(NAMES, modules={**NAMES.modules, **_MODULES})

DEEPSEEK_V32 = Family(
    "deepseek_v32",
    ("DeepseekV32ForCausalLM",),
    "DeepSeek-V3.2",
    _hub_deepseek,
    hub_names=_NAMES,
    gguf="deepseek32",
    read_gguf=_gguf_deepseek,
    gguf_names=GGUF_NAMES,
)
GLM_MOE_DSA = Family(
    "glm_moe_dsa",
    ("GlmMoeDsaForCausalLM",),
    "GLM-5, 5.1 and 5.2",
    _hub_glm,
    gguf="glm-dsa",
    read_gguf=_gguf_glm,
    hub_names=with_other(_NAMES, index_pairs_adjacent=True),
    gguf_names=with_other(GGUF_NAMES, index_pairs_adjacent=True),
)
