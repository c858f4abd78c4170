"""Janus, Janus-Pro and DeepSeek-VL 1.3B as their makers write them: SigLIP's tower in timm's form,
two products, and Llama. What draws pictures isn't read.

config.json names one of a few towers, whose sizes are constants of the original code. Sizes given
in addition to the name override these.

Sources: DeepSeek-AI, "DeepSeek-VL: towards real-world vision-language understanding", 2024, and
"Janus: decoupling visual encoding for unified multimodal understanding and generation", 2024; the
makers' code.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bounds import layer_count
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import IN_BLOCK, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.llava import LLAMA_DEFAULTS
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    bounded,
    feed_forward_of,
    heads,
    patches_in_row,
    stated,
)
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import MLPProjector
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec
from penstock_families.vision.deepseek_vl import OF_MEAN, least_of
from penstock_families.vision.janus import BEGIN, END, PLACEHOLDER

LARGE: dict[str, object] = {
    "width": 1024,
    "layers": 24,
    "heads": 16,
    "patch_size": 16,
    "mlp_ratio": 4,
}
SO400M: dict[str, object] = {
    "width": 1152,
    "layers": 27,
    "heads": 16,
    "patch_size": 14,
    "mlp_ratio": 3.7362,
}
TOWERS = {
    "siglip_large_patch16_384": LARGE,
    "siglip_so400m_patch14_384": SO400M,
    "siglip_so400m_patch14_224": SO400M,
}
"""Sizes of the towers that the makers' code knows by name."""
USUAL: dict[str, object] = {"image_size": 336, "select_layer": -2}
"""What its class of towers has where config.json says nothing."""
DRAWS = ("gen_vision_config", "gen_aligner_config", "gen_head_config")
"""What config.json says of drawing, in Janus alone."""


def tower_settings(fields: Fields) -> Fields:
    """The tower's settings, with the sizes that its name stands for. Raises UnsupportedModel for a
    tower that isn't served."""
    section = fields.section("vision_config")
    kind = section.text("cls", "missing")
    if "HybridVisionTower" in kind:
        raise UnsupportedModel(
            f"{section.where}: cls {kind[:80]!r}, of DeepSeek-VL 7B, is not served as its makers "
            "write it; transformers' DeepseekVLHybridForConditionalGeneration is"
        )
    if "CLIPVisionTower" not in kind:
        raise section.wrong("cls", "CLIPVisionTower")
    params = section.section("params")
    name = params.text("model_name", "siglip_large_patch16_384")
    if name not in TOWERS:
        raise params.wrong("model_name", " or ".join(TOWERS))
    return params.completed(**USUAL, **TOWERS[name])


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section.ignore("cls", "params")
    params, aligner = tower_settings(fields), fields.section("aligner_config").section("params")
    for key in ("pixel_mean", "pixel_std", "select_layers"):
        if params.values.get(key) is not None:
            raise params.wrong(key, "null")
    hidden, count = bounded(params, "width", MAX_WIDTH), layer_count(params, "layers")
    taken = params.integer("select_layer")
    layers = min(count, count + taken + 1 if taken <= 0 else taken)
    if layers < 1:
        raise params.wrong("select_layer", f"a layer of the tower, which has {count},")
    stated(aligner, projector_type="mlp_gelu", depth=2, input_dim=hidden, n_embed=text.hidden_size)
    patch = bounded(params, "patch_size", MAX_PATCH)
    image = bounded(params, "image_size", MAX_PIXELS)
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=feed_forward_of(params, hidden),
        num_layers=layers,
        num_heads=heads(params, "heads", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=1e-6, bias=True),
        patch_bias=True,
        positions=LearnedPositions(side=patches_in_row(params, image, patch)),
        last_norm=True,
    )
    return VisionSpec(tower=tower, projector=MLPProjector(bias=True), image_size=image)


def _decoder(fields: Fields) -> Fields:
    """The makers call the section about the decoder otherwise."""
    return fields.section("language_config")


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The makers' own settings of Janus and DeepSeek-VL, whose text has nothing around a picture's
    embeddings."""
    settings.ignore(*OF_MEAN, "size")
    tower = tower_settings(config)
    side, patch = tower.integer("image_size"), tower.integer("patch_size")
    if settings.integer("image_size") != side or not 1 <= patch <= side:
        raise settings.wrong("image_size", f"what the vision tower has ({side})")
    image = FixedImages(
        pixels=pixels_of(settings),
        height=side,
        width=side,
        rows=(side // patch) ** 2,
        fitted=least_of(settings, side),
        fitted_down=True,
    )
    token = tokens.called(PLACEHOLDER)
    found = KindFacts.marked(image, token)
    if not any(key in config for key in DRAWS):
        return found
    for text in (BEGIN, END):
        tokens.check(text)
    return msgspec.structs.replace(found, before=BEGIN, behind=END)


NAMES = (
    under(
        "vision_model.vision_tower",
        {
            "patch_embed.proj": "patch_embedding",
            "pos_embed": "position_embedding",
            "norm": "last_norm",
            "attn_pool": "head",
            **under("blocks.*", IN_BLOCK, "layers.*"),
        },
    )
    | under("aligner", {"layers.0": "1", "layers.2": "2"}, "projector")
    | dict.fromkeys(("gen_vision_model", "gen_aligner", "gen_embed", "gen_head"))
)

MULTI_MODALITY = VisionFamily(
    "multi_modality",
    ("MultiModalityCausalLM",),
    "Janus, Janus-Pro, DeepSeek-VL 1.3B as their makers write them",
    {"llama": TextHalf(LLAMA, LLAMA_DEFAULTS)},
    _read,
    usual="llama",
    flat=_decoder,
    harmless=frozenset({"aligner_config", "language_config", *DRAWS}),
    pictures=pictures,
    hub_names=NAMES,
)
