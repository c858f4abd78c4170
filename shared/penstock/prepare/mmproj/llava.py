"""mmproj files of LLaVA 1.5 and its like, of LLaVA-NeXT, and of Granite Vision.

Their converter (in llama.cpp's tools/mtmd/legacy-models) leaves out the layers after the one whose
output is taken, so all that are there are computed (ggml-org/llama.cpp, issue 25817).
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD
from penstock.families.vision.llava import pinpoints
from penstock.families.vision.llava_next import MAX_TAKEN, most_of
from penstock.formats.fields import Fields
from penstock.forms.anyres import AnyresImages
from penstock.forms.fixed import FixedImages
from penstock.model.projector_spec import AnyresProjector, MLPProjector
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec
from penstock.prepare.mmproj.common_names import TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind

MARK = "<image>"
UNKNOWN = "<unk>"
"""Llama 2's token that no text has: where the vocabulary lacks one for pictures, as Vicuna's does,
this one stands for their rows."""
NEWLINE, FORMS = "model.image_newline", "image_grid_pinpoints"
"""Only files of pictures in tiles have them."""
MERGING = "mm_patch_merge_type"


def llava(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    if FORMS in found.keys or found.has(NEWLINE) or found.keys.text(MERGING, "flat") != "flat":
        return _in_tiles(found, tokens)
    layers = _taken(found)
    if len(layers) > 1:
        raise UnsupportedModel(
            f"{found.file.path}: several layers' outputs ({list(layers)}) are served for pictures "
            "in tiles alone"
        )
    if not found.has("v.class_embd"):
        raise UnsupportedModel(
            f"{found.file.path}: a LLaVA tower without a class token is not served; CLIP's is"
        )
    (image, side), tower = found.side(), _clip(found)
    _check_outputs(found)
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
    return vision, of_pictures(preparation, tokens.id_of(MARK, UNKNOWN), MARK)


def _in_tiles(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """Without a class token, the tower is SigLIP's."""
    if found.keys.text(MERGING, "spatial_unpad") != "spatial_unpad":
        raise found.keys.wrong(MERGING, "spatial_unpad, of pictures in tiles,")
    image, side = found.side()
    found.shape(NEWLINE, 1)
    forms, taken = _forms(found, image), _taken(found)
    tower = _clip(found) if found.has("v.class_embd") else _siglip(found)
    if len(taken) > 1:
        tower = msgspec.structs.replace(tower, taken=taken)
    _check_outputs(found)
    most = most_of(forms, image)
    projector = AnyresProjector(forms=forms, most=most, bias=found.has("mm.0.bias"))
    vision = VisionSpec(
        tower=tower,
        projector=projector,
        image_size=image,
        row_multiplier=found.text.embedding_multiplier,
    )
    preparation = AnyresImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD), tile=image, side=side, forms=forms, most=most
    )
    return vision, of_pictures(preparation, tokens.id_of(MARK, UNKNOWN), MARK)


def _clip(found: MmprojFile) -> TowerSpec:
    return found.tower(
        "layer",
        activation=found.activation("gelu"),
        class_token=True,
        first_norm=True,
        positions=LearnedPositions(side=found.side()[1]),
    )


def _siglip(found: MmprojFile) -> TowerSpec:
    """The converter knows its activation by no name, and so says nothing of it."""
    return found.tower(
        "layer",
        activation="gelu_tanh",
        patch_bias=True,
        positions=LearnedPositions(side=found.side()[1]),
    )


def _taken(found: MmprojFile) -> tuple[int, ...]:
    """Layers whose outputs are taken, counted from the embedded patches, 0; the last of them is the
    last that the file has. Empty: the last alone is."""
    key, count = "feature_layer", found.num_layers()
    layers = tuple(found.keys.listed(key, int)) if key in found.keys else ()
    if layers and (len(layers) > MAX_TAKEN or max(layers) != count or min(layers) < 0):
        raise found.keys.wrong(key, f"1 to {MAX_TAKEN} layers from 0 to {count}, which is one,")
    return layers


def _forms(found: MmprojFile, tile: int) -> tuple[tuple[int, int], ...]:
    """The file has height and width of each one after the other."""
    sides = found.keys.listed(FORMS, int)
    if not sides or len(sides) % 2:
        raise found.keys.wrong(FORMS, "a height and a width of each form")
    pairs = [list(pair) for pair in zip(sides[::2], sides[1::2], strict=True)]
    return pinpoints(Fields({FORMS: pairs}, found.keys.where), tile)


def _check_outputs(found: MmprojFile) -> None:
    outputs, _ = found.shape("mm.2.weight", 2)
    if outputs != found.text.hidden_size:
        raise UnsupportedModel(
            f"{found.file.path} makes rows of {outputs} numbers; its model's hidden size is "
            f"{found.text.hidden_size}"
        )


MLP = MmprojKind(
    "mlp",
    "LLaVA or LLaVA-NeXT",
    (),
    llava,
    {**TOWER, "image_newline": "projector.newline", "mm.0": "projector.1", "mm.2": "projector.2"},
    sized=False,
)
