"""CLIP: pictures and texts in one space. A text's tokens see those before them.

Source: Radford et al., "Learning transferable visual models from natural language supervision",
2021; keys and defaults: transformers' CLIPConfig.
"""

from __future__ import annotations

from penstock.families.encoder import EncoderFamily
from penstock.families.shared_space import MAX_VECTOR, TEXT_NAMES, check_class, text_layers
from penstock.families.vision.reading import bounded, clip_tower
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig, SharedSpace
from penstock.model.vision_spec import ClassProjector, VisionSpec

OLD_END = 2
"""What the first releases state as the end's id. The end is the highest id of a text then."""
END = 49_407


def _read(fields: Fields, text: Fields, vision: Fields) -> EncoderConfig:
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
    return EncoderConfig.of_layers(
        "clip",
        layers,
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


CLIP = EncoderFamily("clip", ("clip",), read_halves=_read, layer_names=TEXT_NAMES)
