"""SmolLM3: Llama, in which every fourth layer has no positions.

Source: Hugging Face, "SmolLM3", 2025; Yang et al., "RoPE to NoPE and back again", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields, tied=True), fields.flag("attention_bias", False)
    count, interval = sizes["num_layers"], fields.integer("no_rope_layer_interval", 4)
    rotates = [int((number + 1) % interval != 0) for number in range(count)]
    if "no_rope_layers" in fields:
        rotates = fields.listed("no_rope_layers", int)
    if len(rotates) != count:
        raise fields.wrong("no_rope_layers", f"a list of {count} numbers")
    feed_forward = FeedForwardSpec(bias=fields.flag("mlp_bias", False))
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=window, rope=0 if turns else None, qkv_bias=bias, output_bias=bias
            ),
            feed_forward=feed_forward,
        )
        for window, turns in zip(hub.windows_behind(fields, count), rotates, strict=True)
    ]
    return ModelConfig(
        architecture="smollm3",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=2_000_000.0),),
        layers=hub.shared(layers),
    )


def _gguf_smollm3(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    layers = [
        LayerSpec(attention=AttentionSpec(rope=0 if (number + 1) % 4 else None))
        for number in range(sizes["num_layers"])
    ]
    return ModelConfig(
        architecture="smollm3",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=hub.shared(layers),
    )


SMOLLM3 = Family(
    "smollm3",
    ("SmolLM3ForCausalLM",),
    "SmolLM3",
    _hub,
    gguf="smollm3",
    read_gguf=_gguf_smollm3,
    gguf_names=TensorNames(pairs_adjacent=True),
)
