"""mmproj files of LLaVA 1.5 and its like, which have CLIP's tower.

Its converter leaves out the layers after the one whose output is taken, so all that are there are
computed (ggml-org/llama.cpp, issue 25817).
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.model.media_facts import FixedImages
from penstock.model.vision_spec import LearnedPositions, MLPProjector, VisionSpec
from penstock.prepare.image_processor import CLIP_MEAN, CLIP_STD
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures

MARK = "<image>"
UNKNOWN = "<unk>"
"""Llama 2's token that no text has: where the vocabulary lacks one for pictures, as Vicuna's does,
this one stands for their rows."""


def llava(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    _refuse_variants(found)
    image, side = found.side()
    tower = found.tower(
        "layer",
        activation=found.activation("gelu"),
        class_token=True,
        first_norm=True,
        positions=LearnedPositions(side=side),
    )
    outputs, _ = found.shape("mm.2.weight", 2)
    if outputs != found.text.hidden_size:
        raise UnsupportedModel(
            f"{found.file.path} makes rows of {outputs} numbers; its model's hidden size is "
            f"{found.text.hidden_size}"
        )
    vision = VisionSpec(
        tower=tower, projector=MLPProjector(bias=found.has("mm.0.bias")), image_size=image
    )
    preparation = FixedImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD),
        height=image,
        width=image,
        rows=side * side,
        shortest_edge=image,
    )
    token, token_id = tokens.id_of(MARK, UNKNOWN)
    return vision, of_pictures(preparation, MARK, token, token_id)


def _refuse_variants(found: MmprojFile) -> None:
    keys, where = found.keys, str(found.file.path)
    layers = keys.listed("feature_layer", int) if "feature_layer" in keys else []
    if layers not in ([], [found.num_layers()]):
        raise UnsupportedModel(f"{where}: several layers' outputs ({layers}) are not served")
    tiled = "image_grid_pinpoints" in keys or found.has("model.image_newline")
    if tiled or keys.text("mm_patch_merge_type", "flat") != "flat":
        raise UnsupportedModel(f"{where}: pictures in tiles (LLaVA-NeXT) are not served")
    if not found.has("v.class_embd"):
        raise UnsupportedModel(
            f"{where}: a LLaVA tower without a class token is not served; CLIP's is"
        )
