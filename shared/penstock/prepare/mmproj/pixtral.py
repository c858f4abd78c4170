"""mmproj files of Pixtral, Mistral Small 3 and LightOnOCR."""

from __future__ import annotations

from penstock.families.tower_names import TowerNames
from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD
from penstock.families.vision.reading import bounded
from penstock.forms.rows import RowImages
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import MLPProjector, SquareMLPProjector
from penstock.model.tower_spec import RotaryPositions, VisionSpec
from penstock.prepare.mmproj.common_names import PROJECTOR, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind


def pixtral(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    return _in_rows(found, tokens, "[IMG]")


def lighton_ocr(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    return _in_rows(found, tokens, "<|image_pad|>", row_end="", end="")


def _in_rows(
    found: MmprojFile, tokens: MmprojTokens, mark: str, **around: str
) -> tuple[VisionSpec, Kinds]:
    """mark: the token of pictures. around: RowImages' texts."""
    image, patches = found.side()
    merge = bounded(found.keys, "spatial_merge_size", patches, 1)
    tower = found.tower(
        "rms",
        activation=found.activation("gelu"),
        gated=True,
        qkv_bias=False,
        bias=False,
        first_norm=True,
        positions=RotaryPositions(alternating=True, adjacent=True),
    )
    if tower.head_dim % 4:
        raise found.keys.wrong("attention.head_count", "heads of a multiple of 4 numbers")
    bias = found.has("mm.1.bias")
    projector: MLPProjector | SquareMLPProjector = MLPProjector(bias=bias)
    if found.has("mm.patch_merger.weight"):
        norm = NormSpec(kind="rms", eps=found.text.norm.eps)
        projector = SquareMLPProjector(factor=merge, norm=norm, bias=bias, merged=True)
    token = tokens.id_of(mark)
    preparation = RowImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD),
        longest_edge=image,
        patch=tower.patch * merge,
        **around,
    )
    tokens.need(*filter(None, (preparation.row_end, preparation.end)))
    vision = VisionSpec(tower=tower, projector=projector)
    return vision, of_pictures(preparation, token)


_NAMES: TowerNames = {**TOWER, **PROJECTOR, "mm.patch_merger": "projector.merging"}
PIXTRAL = MmprojKind("pixtral", "Pixtral or Mistral Small 3", ("llama", "mistral"), pixtral, _NAMES)
LIGHTON_OCR = MmprojKind("lightonocr", "LightOnOCR", ("qwen3",), lighton_ocr, _NAMES)
