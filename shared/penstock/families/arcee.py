"""AFM (Arcee): Llama with squared relu and no gate. Source: Arcee, "AFM-4.5B", 2025."""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "relu2", default="relu2")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(
            activation="relu2", gated=False, bias=fields.flag("mlp_bias", False)
        ),
    )
    return ModelConfig(
        architecture="arcee",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


def _gguf_arcee(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    feed_forward = FeedForwardSpec(activation="relu2", gated=False, bias=model.has("ffn_up.bias"))
    return ModelConfig(
        architecture="arcee",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(feed_forward=feed_forward),),
    )


ARCEE = Family(
    "arcee",
    ("ArceeForCausalLM",),
    "AFM",
    _hub,
    gguf="arcee",
    read_gguf=_gguf_arcee,
    gguf_names=TensorNames(pairs_adjacent=True),
)
