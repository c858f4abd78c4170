"""Phi-3-vision and Phi-3.5-vision: CLIP's tower over the tiles of a sheet that a picture's longer
side fills, the layer before its last, lines of squares of patches, and Phi-3's decoder.

The makers' config.json names the tower and says nothing of its sizes, which are constants of their
code: those of OpenAI's ViT-L/14 for 336 pixels. A section about the tower, if there is one, says
what differs from it.

Sources: Microsoft, "Phi-3 technical report", 2024; Radford et al., "CLIP", 2021; Dong et al.,
"InternLM-XComposer2-4KHD", 2024.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.llama_relatives import PHI3
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.phi4_multimodal import PICTURES, SHEET
from penstock.families.vision.pictures import MAX_TILES
from penstock.families.vision.reading import TextHalf, VisionFamily, clip_tower, stated
from penstock.formats.fields import Fields
from penstock.forms.sheets import BarredImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SheetProjector
from penstock.model.tower_spec import VisionSpec

TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 32_064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}
"""Defaults of the makers' class of configurations."""
TOWER: dict[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
"""The only tower that the makers' code has."""
LAYER = -2
"""The layer whose output is taken, where config.json doesn't say."""
EMBEDDING: dict[str, object] = {
    "embedding_cls": "image",
    "hd_transform_order": "sub_glb",
    "projection_cls": "mlp",
    "use_hd_transform": True,
    "with_learnable_separator": True,
}
"""How a picture's rows are made, in the form that all releases have."""
BESIDE = ("embd_layer", "img_processor", "vision_config")
"""What config.json says of pictures among the decoder's settings."""


def _flat(fields: Fields) -> Fields:
    """config.json has no section about the decoder."""
    return fields


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    embedding, processor = fields.section("embd_layer"), fields.section("img_processor")
    stated(embedding, **EMBEDDING)
    hub.only(processor, name="clip_vision_model", type_feature="patch")
    hub.only(processor, model_name="openai/clip-vit-large-patch14-336")
    section = section.completed(**TOWER)
    tower, image = clip_tower(section, processor.integer("layer_idx", LAYER), keeps_class=False)
    projector = SheetProjector(whole=True)
    side = image // tower.patch
    if image % tower.patch or side % projector.factor:
        raise UnsupportedModel(
            f"{section.where}: image_size {image} and patch_size {tower.patch} are not served; a "
            f"multiple of {projector.factor} patches in a row of a tile is needed, and no pixel "
            "left over"
        )
    squares = (side // projector.factor) ** 2
    hub.only(processor, image_dim_out=tower.hidden_size, num_img_tokens=squares)
    for said in (embedding, processor):
        hub.pass_over(said, frozenset())
    return VisionSpec(tower=tower, projector=projector, image_size=image)


TOKEN = "<|image|>"
"""What stands for a picture, in the tokenizer of Phi-3-vision."""


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The makers' processor tokenises what stands between pictures by itself, each part with BOS in
    front, so that BOS follows every picture. A tile's size is a constant of their code."""
    vision = config.section("vision_config").completed(image_size=336, patch_size=14)
    tile, patch = vision.integer("image_size"), vision.integer("patch_size")
    if not 1 <= patch <= tile:
        raise vision.wrong("patch_size", f"1 to {tile} pixels")
    most = settings.integer("num_crops")
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("num_crops", f"1 to {MAX_TILES} tiles")
    image = BarredImages(pixels=pixels_of(settings), tile=tile, patch=patch, most=most)
    hub.only(settings, num_img_tokens=(tile // patch // image.merge) ** 2)
    token = tokens.called(TOKEN)
    begin, _ = tokens.named("bos_token_id")
    return KindFacts.marked(image, token, behind=begin, counted=PICTURES)


NAMES = under(
    "vision_embed_tokens", {**SHEET, **under("img_processor.vision_model", CLIP), "wte": None}
)

PHI3_V = VisionFamily(
    "phi3_v",
    ("Phi3VForCausalLM",),
    "Phi-3-vision, Phi-3.5-vision",
    {"phi3_v": TextHalf(PHI3, TEXT_DEFAULTS)},
    _read,
    usual="phi3_v",
    flat=_flat,
    harmless=frozenset(BESIDE),
    ignored=BESIDE,
    begins_with_bos=True,
    pictures=pictures,
    hub_names=NAMES,
)
