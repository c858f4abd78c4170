"""Mistral Small 4: attention over latents as in DeepSeek-V2, with queries that grow with their
position, and experts chosen by a softmax, plus a shared one.

Source: Mistral AI, "Mistral Small 4", 2026.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.families import deepseek
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec

ROPE, SHARE = "rope_parameters", "partial_rotary_factor"
STRETCHED: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""The rotation where config.json has none."""


def _hub(fields: Fields) -> ModelConfig:
    experts = ExpertsSpec(
        **deepseek.common_experts(fields, 1.0),
        groups=fields.integer("n_group", 1),
        active_groups=fields.integer("topk_group", 1),
        normalised=fields.flag("norm_topk_prob", True),
    )
    return deepseek.latent_model(
        _of_turning_part(fields),
        "mistral4",
        experts,
        dense=deepseek.dense_layers(fields, 0),
    )


def _of_turning_part(fields: Fields) -> Fields:
    """The settings with a rotation of the part of a head that rotates: this family's say besides
    which share of the head it is."""
    stated = fields.section(ROPE) if ROPE in fields else Fields(STRETCHED, fields.where)
    turning, plain = fields.integer("qk_rope_head_dim"), fields.integer("qk_nope_head_dim")
    share = stated.number(SHARE, turning / max(turning + plain, 1))
    if int(share * (turning + plain)) != turning:
        raise stated.wrong(SHARE, f"{turning} / {turning + plain}, what rotates of a head,")
    return fields.replaced({ROPE: stated.without(SHARE).values})


def _gguf(model: GGUFMetadata) -> ModelConfig:
    return msgspec.structs.replace(deepseek.gguf_model(model), architecture="mistral4")


MISTRAL4 = Family(
    "mistral4",
    ("Mistral4ForCausalLM",),
    "Mistral Small 4",
    _hub,
    hub_names=TensorNames(
        deepseek.NAMES.modules,
        stacked={
            "mlp.experts.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
            "mlp.experts.down_proj": ("mlp.experts.*.down_proj",),
        },
        layers_for_drafts=True,
        pairs_adjacent=True,
    ),
    gguf="mistral4",
    read_gguf=_gguf,
    gguf_names=TensorNames(
        stacked={
            **deepseek.GGUF_NAMES.stacked,
            "mlp.stacked.gate_up_proj": ("mlp.experts.*.gate_proj", "mlp.experts.*.up_proj"),
        },
        layers_for_drafts=True,
        pairs_adjacent=True,
    ),
)
