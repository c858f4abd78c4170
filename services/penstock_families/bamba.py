"""Bamba: Mamba 2 in most layers, in the others attention whose heads rotate in half; a feed-forward
after each.

Source: IBM, Princeton, CMU and UIUC, "Bamba: inference-efficient hybrid Mamba2 model", 2024.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.granite import MAMBA, OF_MAMBA, mamba_of
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec

ATTENDING = "attn_layer_indices"


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    fields.ignore("mamba_chunk_size", "z_loss_coefficient")  # of the computation, and of training
    fields.ignore("num_logits_to_keep")  # of transformers' own generation
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    # Files say it besides, as a number of numbers.
    hub.only(fields, attn_rotary_emb=sizes["head_dim"] // 2)
    attends = _attending(fields, sizes["num_layers"])
    mamba = None
    if all(attends):
        fields.ignore(*OF_MAMBA)
    else:
        mamba = mamba_of(fields, sizes["hidden_size"])
    attention = AttentionSpec(qkv_bias=bias, output_bias=bias)
    feed_forward = FeedForwardSpec(bias=fields.flag("mlp_bias", False))
    return ModelConfig(
        architecture="bamba",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], share=0.5),),
        layers=hub.shared(
            LayerSpec(
                attention=attention,
                recurrent=None if attending else mamba,
                feed_forward=feed_forward,
            )
            for attending in attends
        ),
    )


def _attending(fields: Fields, count: int) -> list[bool]:
    """Whether each layer attends: those that config.json numbers, from 0 on."""
    named = fields.listed(ATTENDING, int) if ATTENDING in fields else []
    if any(not 0 <= number < count for number in named):
        raise fields.wrong(ATTENDING, f"a list of numbers from 0 to {count - 1}")
    return [number in named for number in range(count)]


BAMBA = Family(
    "bamba",
    ("BambaForCausalLM",),
    "Bamba",
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
)
