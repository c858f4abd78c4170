"""EAGLE-3: a layer that drafts for a model, from what three of that model's layers give.

Source: Li et al., "EAGLE-3", 2025 (arXiv:2503.01840); the keys are those of SpecForge's and of
speculators' config.json.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import HeadConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec

HEAD_CLASSES = frozenset(
    {
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3Speculator",
        "Eagle3DraftModel",
    }
)
"""What `architectures` names in a head's config.json."""

LAYER = "transformer_layer_config"
"""The section about the layer in speculators' config.json."""
AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
NUM_AUX_LAYERS = 3


def is_eagle3(fields: Fields) -> bool:
    names = fields.values.get("architectures")
    return isinstance(names, list) and any(
        isinstance(name, str) and name in HEAD_CLASSES for name in names
    )


def default_aux_layers(layers: int) -> tuple[int, ...]:
    """After how many of a model's layers EAGLE-3 reads where config.json doesn't say."""
    return 2, layers // 2, layers - 3


def read_eagle3(fields: Fields) -> HeadConfig:
    """Raises UnsupportedModel for a variant that isn't served."""
    stated = fields
    if LAYER in fields:
        fields = fields.section(LAYER)
    if fields.text("model_type", "llama") != "llama":
        raise fields.wrong("model_type", "'llama'")
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    if sizes["num_layers"] != 1:
        raise fields.wrong("num_hidden_layers", "1")
    details = stated.section("eagle_config")
    if not details.flag("use_aux_hidden_state", True):
        raise details.wrong("use_aux_hidden_state", "true")
    served = sizes.pop("vocab_size")
    bias = fields.flag("attention_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(bias=fields.flag("mlp_bias", False)),
    )
    return HeadConfig(
        architecture="eagle3",
        **sizes | {"tie_word_embeddings": False},
        vocab_size=_drafted(stated, served),
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
        logits_multiplier=stated.number("logit_scale", 1.0),
        served_vocab=served,
        served_hidden=stated.integer("target_hidden_size", sizes["hidden_size"]),
        aux_layers=_aux_layers(stated, details),
        beside=True,
        normed_residual=stated.flag("norm_before_residual", False),
    )


def _drafted(fields: Fields, served: int) -> int:
    count = fields.integer("draft_vocab_size", served)
    if not 1 <= count <= served:
        raise UnsupportedModel(
            f"{fields.where}: draft_vocab_size is {count}; 1 to {served} (vocab_size) are allowed"
        )
    return count


def _aux_layers(stated: Fields, details: Fields) -> tuple[int, ...]:
    """Numbers of layers that come before. SpecForge's section counts the layer itself from 0."""
    if AUX_LAYERS in stated:
        found = stated.listed(AUX_LAYERS, int)
    elif AUX_LAYERS in details:
        found = [number + 1 for number in details.listed(AUX_LAYERS, int)]
    else:
        return ()
    if len(found) != NUM_AUX_LAYERS or min(found) < 0:
        raise UnsupportedModel(
            f"{stated.where}: {AUX_LAYERS} are {found}; {NUM_AUX_LAYERS} numbers of layers are "
            "allowed"
        )
    return tuple(found)
