"""mmproj files of MiniCPM-V, 4.6 and older ones, and of MiniCPM-o 2.6.

Source: llama.cpp's converters.
"""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.image_processor import HALF
from penstock.formats.fields import Fields
from penstock.forms.sliced import SlicedImages
from penstock.model.media_facts import KindFacts
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec
from penstock.prepare.mmproj.common_names import IN_LAYER, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, side_of_table
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock.prepare.mmproj.videos import with_videos
from penstock_families.vision.minicpmv import PLACEHOLDER, QUERIES, SLICE_NUMBER
from penstock_families.vision.minicpmv import TOKEN as OLDER_TOKEN
from penstock_families.vision.minicpmv import positions as older_positions
from penstock_families.vision.minicpmv import projector as resampler
from penstock_families.vision.minicpmv4_6 import (
    MOST_FRAMES,
    each_second,
    merging,
    of_sliced,
    positions,
    projector,
)

TOKEN = "<|image_pad|>"
FACTORS = (4, 2)
"""Patches, each way, that become one embedding: with squares that the tower merges, and without."""


def minicpmv4_6(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """image_size is the side of the square of as many pixels as a slice has; the table of positions
    has its own."""
    factor = found.keys.integer("projector.scale_factor", FACTORS[0])
    if factor not in FACTORS:
        raise found.keys.wrong("projector.scale_factor", "4 or 2")
    tower = _tower(found, positions(side_of_table(found)))
    if factor == FACTORS[0]:
        layers = found.keys.listed("wa_layer_indexes", int)
        if len(layers) != 1 or not 0 <= layers[0] < tower.num_layers:
            raise found.keys.wrong("wa_layer_indexes", "one layer of the tower")
        tower = msgspec.structs.replace(tower, merging=merging(tower, layers[0]))
    scale, _ = found.side()
    preparation = SlicedImages(
        pixels=found.pixels(3, HALF, HALF), patch=tower.patch, merge=factor, scale=scale
    )
    facts = _numbered(preparation, tokens, TOKEN)
    vision = VisionSpec(tower=tower, projector=projector(tower))
    videos = partial(of_sliced, sampling=each_second(MOST_FRAMES))
    return vision, with_videos({"image": facts}, tokens, "<|video_pad|>", videos)


VERSIONS = {3: "2.6", 4: "o 2.6", 5: "4.0", 6: "4.5"}
"""MiniCPM's versions by the converter's number."""


def minicpmv(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """MiniCPM-V up to 4.5. Files of older converters don't say how many queries there are."""
    keys = Fields(found.file.metadata, str(found.file.path))
    if keys.integer("clip.minicpmv_version", 2) not in VERSIONS:
        known = ", ".join(f"{number} ({name})" for number, name in VERSIONS.items())
        raise keys.wrong("clip.minicpmv_version", f"one of {known}")
    tower = _tower(found, older_positions(side_of_table(found)))
    queries = keys.integer("clip.minicpmv_query_num", 0) or QUERIES
    scale, side = found.side()
    preparation = SlicedImages(
        pixels=found.pixels(3, HALF, HALF), patch=tower.patch, whole=1, scale=scale, queries=queries
    )
    facts = _numbered(preparation, tokens, OLDER_TOKEN, PLACEHOLDER)
    made = resampler(found.keys, queries, found.text.hidden_size, side)
    return VisionSpec(tower=tower, projector=made), {"image": facts}


def _tower(found: MmprojFile, positions: LearnedPositions) -> TowerSpec:
    """SigLIP's."""
    act = found.activation("gelu_tanh")
    return found.tower(
        "layer", activation=act, patch_bias=True, last_norm=True, positions=positions
    )


def _numbered(
    preparation: SlicedImages, tokens: MmprojTokens, named: str, placeholder: str | None = None
) -> KindFacts:
    """named: the token of an embedding.  placeholder: of a picture in a prompt; None: the same."""
    token = tokens.id_of(named)
    around = (preparation.begin, preparation.end, preparation.slice_begin, preparation.slice_end)
    tokens.need(*around, *SLICE_NUMBER)
    return KindFacts.marked(preparation, token, placeholder, numbered=SLICE_NUMBER)


MINICPMV = MmprojKind(
    "resampler",
    "MiniCPM-V up to 4.5",
    ("qwen2", "qwen3", "llama", "minicpm"),
    minicpmv,
    {**TOWER, **under("resampler", {"proj": "out"}, "projector")},
    sized=False,
)
_MERGING: TowerNames = {
    **IN_LAYER,
    "ds_ln": "norm2",
    "ds_ffn_up": "up_proj",
    "ds_ffn_down": "down_proj",
}
MINICPMV4_6 = MmprojKind(
    "minicpmv4_6",
    "MiniCPM-V 4.6",
    ("qwen3_5",),
    minicpmv4_6,
    {
        **TOWER,
        **under("v.vit_merger", _MERGING, "merging"),
        "mm.input_norm": "projector.norm",
        "mm.up": "projector.1",
        "mm.down": "projector.2",
    },
    counted=True,
)
