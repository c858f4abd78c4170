"""SigLIP, and those of SigLIP 2 that take pictures of one size: pictures and texts in one space.

A text is filled up to a fixed length, and what fills it is seen like any other token: the last
token's vector, which may be one of these, is the text's.

Source: Zhai et al., "Sigmoid loss for language image pre-training", 2023; Tschannen et al., "SigLIP
2", 2025; keys and defaults: transformers' SiglipConfig.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.encoder import EncoderFamily
from penstock.families.shared_space import MAX_VECTOR, TEXT_NAMES, check_class, text_layers
from penstock.families.vision.reading import bounded, siglip_tower
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, SharedSpace
from penstock.model.vision_spec import ProbeProjector, VisionSpec


def _read(fields: Fields, text: Fields, vision: Fields) -> EncoderConfig:
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
    return EncoderConfig.of_layers(
        "siglip",
        layers,
        space=SharedSpace(
            size=size,
            vision=VisionSpec(tower=tower, projector=ProbeProjector(), image_size=image),
            bias=True,
            padded=True,
        ),
    )


SIGLIP = EncoderFamily("siglip", ("siglip",), read_halves=_read, layer_names=TEXT_NAMES)
