"""CLIP and SigLIP: pictures and texts in one embedding space, by a text transformer and a vision
transformer. In CLIP the text's attention is causal.

Sources: Radford et al., "Learning transferable visual models from natural language supervision",
2021; keys and defaults: transformers' CLIPConfig and SiglipConfig.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import EncoderFamily
from penstock.families.media_tokens import MediaTokens
from penstock.families.tensor_names import TensorNames
from penstock.families.vision.image_processor import ImageSettings, fixed_size, pixels_of
from penstock.families.vision.reading import activation, bounded, clip_tower, siglip_tower
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedImages
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import EncoderConfig, ModelConfig, SharedSpace
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import ClassProjector, ProbeProjector
from penstock.model.tower_spec import VisionSpec

MAX_VECTOR = 65_536
"""Numbers of a vector."""
MAX_TOKENS = 65_536
"""Rows of a table of positions."""
TEXT_NAMES = TensorNames(
    {
        "embeddings.token_embedding": "embed_tokens",
        "embeddings.position_embedding": "embed_positions",
        "layer_norm1": "input_layernorm",
        "layer_norm2": "post_attention_layernorm",
        "self_attn.out_proj": "self_attn.o_proj",
        "mlp.fc1": "mlp.up_proj",
        "mlp.fc2": "mlp.down_proj",
        "final_layer_norm": "norm",
    }
)


def check_class(fields: Fields, served: str) -> None:
    """Raises UnsupportedModel for one half alone, or the model with another head."""
    names = fields.listed("architectures", str) if "architectures" in fields else [served]
    if served not in names:
        raise UnsupportedModel(
            f"{fields.where}: the architecture {', '.join(names)[:80] or 'none'} is not served; "
            f"{served} is"
        )


def text_layers(section: Fields, family: str, eps: float, act: str, **defaults: Any) -> ModelConfig:
    """The text transformer: layer norms, biases everywhere, a feed-forward without a gate, and a
    table of positions. eps, act, defaults: where the section says nothing."""
    section = section.completed(**defaults)
    sizes = hub.sizes(section, tied=True)
    positions = sizes["max_position"]
    if not 1 <= positions <= MAX_TOKENS:
        raise section.wrong("max_position_embeddings", f"1 to {MAX_TOKENS}")
    layer = LayerSpec(
        attention=AttentionSpec(rope=None, qkv_bias=True, output_bias=True),
        feed_forward=FeedForwardSpec(activation=activation(section, act), gated=False, bias=True),
    )
    return ModelConfig(
        architecture=family,
        **{**sizes, "tie_word_embeddings": True},
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", eps), bias=True),
        ropes=(),
        layers=(layer,),
        learned_positions=positions,
    )


OLD_END = 2
"""What the first releases state as the end's id. The end is the highest id of a text then."""
END = 49_407


def _read_clip(fields: Fields, text: Fields, vision: Fields) -> EncoderConfig:
    check_class(fields, "CLIPModel")
    fields.ignore("logit_scale_init_value")
    layers = text_layers(
        text,
        "clip",
        1e-5,
        "quick_gelu",
        vocab_size=49_408,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=8,
        max_position_embeddings=77,
    )
    end = text.integer("eos_token_id", END)
    tower, image = clip_tower(vision, -1, keeps_class=True)
    return EncoderConfig(
        layers=layers,
        causal=True,
        space=SharedSpace(
            size=bounded(fields, "projection_dim", MAX_VECTOR, 512),
            vision=VisionSpec(
                tower=tower, projector=ClassProjector(norm=tower.norm), image_size=image
            ),
            token="highest" if end == OLD_END else "end",
            end_token=end,
        ),
    )


CLIP = EncoderFamily("clip", ("clip",), read_halves=_read_clip, layer_names=TEXT_NAMES)


# SigLIP, and those of SigLIP 2 that take pictures of one size: pictures and texts in one space.
#
# A text is filled up to a fixed length, and what fills it is seen like any other token: the last
# token's vector, which may be one of these, is the text's.
#
# Source: Zhai et al., "Sigmoid loss for language image pre-training", 2023; Tschannen et al.,
# "SigLIP 2", 2025; keys and defaults: transformers' SiglipConfig.


def _read_siglip(fields: Fields, text: Fields, vision: Fields) -> EncoderConfig:
    check_class(fields, "SiglipModel")
    layers = text_layers(
        text,
        "siglip",
        1e-6,
        "gelu_pytorch_tanh",
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=64,
    )
    if not vision.flag("vision_use_head", True):
        raise vision.wrong("vision_use_head", "true")
    tower, image = siglip_tower(vision)
    size = bounded(text, "projection_size", MAX_VECTOR, layers.hidden_size)
    if size != tower.hidden_size:
        raise UnsupportedModel(
            f"{fields.where}: vectors of texts have {size} numbers, and those of pictures "
            f"{tower.hidden_size}; they must have as many"
        )
    return EncoderConfig(
        layers=layers,
        space=SharedSpace(
            size=size,
            vision=VisionSpec(tower=tower, projector=ProbeProjector(), image_size=image),
            bias=True,
            padded=True,
        ),
    )


SIGLIP = EncoderFamily("siglip", ("siglip",), read_halves=_read_siglip, layer_names=TEXT_NAMES)


CLASSES = ("CLIPModel", "SiglipModel")
"""What config.json calls models that embed texts and pictures."""


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """CLIP's and SigLIP's: a picture is an input by itself, of which one vector is made."""
    height, width, edge, resized = fixed_size(settings)
    side = config.section("vision_config").optional_integer("image_size")
    if height != width or side not in (None, height):
        raise UnsupportedModel(
            f"{settings.where}: pictures are prepared as {height} × {width}; the model takes "
            f"{side or 'squares'}"
        )
    image = FixedImages(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=1,
        shortest_edge=edge,
        resized=resized,
    )
    return KindFacts(preparation=image, placeholder="", token="", token_id=0)
