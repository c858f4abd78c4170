"""A family of models: Llama, whose checkpoints call some modules otherwise."""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec


def _read(fields: Fields) -> ModelConfig:
    """Every setting that changes the output has to be read here, or be named in `unserved`."""
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    return ModelConfig(
        architecture="example_llama",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(LayerSpec(attention=AttentionSpec(), feed_forward=FeedForwardSpec()),),
    )


EXAMPLE_LLAMA = Family(
    "example_llama",
    ("ExampleLlamaForCausalLM",),
    "Example Llama",
    _read,
    hub_names=TensorNames(
        modules={
            "attention.query": "self_attn.q_proj",
            "attention.key": "self_attn.k_proj",
            "attention.value": "self_attn.v_proj",
            "attention.output": "self_attn.o_proj",
        }
    ),
)
