"""Phi-4-multimodal's decoder and its sight: a SigLIP tower over a sheet's tiles, the layer before
its last, lines of means of squares of patches, and Phi-3's decoder. What it hears with is in
`families/phi4_multimodal_audio.py`.

The makers' own config.json says less than transformers': the tower's sizes are constants of their
code. Their checkpoint has two adapters of the decoder's among its weights, for pictures and for
sounds, and again in folders of their own, from which they are served.

Source: Microsoft, "Phi-4-mini technical report", 2025.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import TextHalf
from penstock.families.llama_relatives import PHI3
from penstock.families.vision.reading import VisionFamily, siglip_tower
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.projector_spec import SheetProjector
from penstock.model.tower_spec import VisionSpec
from penstock.process import logs

log = logs.get(__name__)

CLASSES = ("Phi4MultimodalForCausalLM", "Phi4MMForCausalLM")
"""transformers' and the makers'."""
TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 200_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
"""Defaults of transformers' Phi4MultimodalConfig."""
TOWER_DEFAULTS: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "crop_size": 448,
    "feature_layer": -2,
}
"""The settings of its Phi4MultimodalVisionConfig, which are the constants of the makers' code."""
OF_MAKERS: dict[str, object] = {
    "crop_size": 448,
    "hd_transform_order": "sub_glb",
    "image_token_compression_cls": "avg_pool_2d",
    "projection_cls": "mlp",
    "use_hd_transform": True,
    "with_learnable_separator": True,
}
"""What the makers' config.json says of pictures, in the one form that their code has."""
ADAPTERS = ("vision_lora", "speech_lora")
"""Sections of config.json that say how the two adapters were trained."""
BESIDE = ("audio_config", "audio_processor", "embd_layer", "img_processor", "vision_config")
"""What config.json says beside the decoder's settings, and among them."""

HALVES = dict.fromkeys(("phi4_multimodal", "phi4mm"), TextHalf(PHI3, TEXT_DEFAULTS))
HARMLESS = frozenset((*BESIDE, *ADAPTERS))


def flat_decoder(fields: Fields) -> Fields:
    """config.json has no section about the decoder."""
    if any(key in fields for key in ADAPTERS):
        log.info(
            "the checkpoint is served without the adapters that it has for pictures and sounds, "
            "unless settings name their folders and a request's model one of them",
            config=fields.where,
            settings="--enable-lora --max-lora-rank 320 --lora-modules "
            "vision=FOLDER/vision-lora speech=FOLDER/speech-lora",
        )
    key = "num_key_value_heads"
    if key in fields.values and fields.values[key] is None:  # each head has its own
        return fields.replaced({key: fields.values.get("num_attention_heads")})
    return fields


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    if fields.section("img_processor").values:
        raise fields.wrong("img_processor", "null")
    hub.only(fields.section("embd_layer").section("image_embd_layer"), **OF_MAKERS)
    section = section.completed(**TOWER_DEFAULTS)
    tower, image = siglip_tower(section, section.integer("feature_layer"), fractional=True)
    factor = SheetProjector().factor
    if image % tower.patch or image // tower.patch % factor:
        raise UnsupportedModel(
            f"{section.where}: image_size {image} and patch_size {tower.patch} are not served; a "
            f"multiple of {factor} patches in a row of a tile is needed, and no pixel left over"
        )
    hub.only(section, crop_size=image)
    section.ignore("image_token_id")  # read with the pictures' preparation
    return VisionSpec(tower=tower, projector=SheetProjector(), image_size=image)


PHI4_MULTIMODAL = VisionFamily(
    "phi4_multimodal",
    CLASSES,
    "Phi-4-multimodal",
    HALVES,
    _read,
    usual="phi4_multimodal",
    flat=flat_decoder,
    harmless=HARMLESS,
    ignored=tuple(HARMLESS),
)
