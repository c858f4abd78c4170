"""mmproj files of DeepSeek-OCR and DeepSeek-OCR 2.

What llama.cpp has built in is in no file: which layers attend to a whole tile, how queries rotate,
the norms of convolutions, the activation of CLIP's layers, and how large the first one's tiles are.
"""

from __future__ import annotations

import math
from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.image_processor import HALF
from penstock.families.vision.pictures import MAX_TILES
from penstock.families.vision.reading import MAX_HEADS, MAX_SIDE, MAX_WIDTH, bounded, heads
from penstock.forms.documents import DocumentImages
from penstock.model.document_spec import (
    DocumentProjector,
    PageLayersSpec,
    PageProjector,
    QueryLayersSpec,
)
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_form import QUARTER
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec, WindowSpec
from penstock.prepare.mmproj.common_names import IN_LAYER, TOWER
from penstock.prepare.mmproj.file import MAX_LAYERS, Kinds, MmprojFile, MmprojTokens, as_written
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock_families.vision.deepseek_ocr import CLIP_NORM
from penstock_families.vision.deepseek_ocr2 import NECK, NECK_NORM

WHOLE = (2, 5, 8, 11)
"""Layers that attend to a whole tile."""
THETA = 1_000_000.0
TABLES = ("v.resample_query_768.weight", "v.resample_query_1024.weight")
"""Queries of a tile, and of a page."""
TOKEN = "<image>"
TILE = 640
"""Side of the first one's tiles, pixels."""


def deepseek_ocr(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """What the file says of patches is CLIP's, and the size of its feed-forward is another one."""
    tower, hidden = _tower(found), found.hidden_size()
    inner, _ = found.shape("v.blk.0.ffn_up.weight", 2)
    places, _ = found.shape("v.position_embd.weight", 2)
    side = math.isqrt(places - 1)
    if not 0 < side * side == places - 1 <= MAX_SIDE**2:
        raise UnsupportedModel(
            f"{found.file.path}: v.position_embd has {places} rows; one more than a square is "
            "needed"
        )
    layers = PageLayersSpec(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=found.num_layers(),
        num_heads=heads(found.keys, "attention.head_count", hidden),
        norm=CLIP_NORM,
        side=side,
    )
    projector = PageProjector(channels=_channels(found), norm=NECK_NORM, layers=layers)
    preparation = _pages(found, tower, TILE, _page(tower), most=9, lines=True)
    return VisionSpec(tower=tower, projector=projector), _kinds(preparation, tokens)


def _page(tower: TowerSpec) -> int:
    """Side of a page, pixels: the table of positions is for one."""
    return tower.windows.grid * tower.patch if tower.windows is not None else 0


def _pages(found: MmprojFile, tower: TowerSpec, tile: int, page: int, **own: Any) -> DocumentImages:
    """own: further fields. Raises UnsupportedModel for an impossible number of tiles."""
    least = bounded(found.keys, "preproc_min_tiles", MAX_TILES, 2)
    own["most"] = bounded(found.keys, "preproc_max_tiles", MAX_TILES, own.get("most", 6))
    if least > own["most"]:
        raise found.keys.wrong("preproc_min_tiles", f"at most {own['most']}")
    rows = [(-(-side // (QUARTER * tower.patch))) ** 2 for side in (tile, page)]
    return DocumentImages(
        pixels=found.pixels(3, HALF, HALF),
        patch=tower.patch,
        tile=tile,
        page=page,
        tile_rows=rows[0],
        page_rows=rows[1],
        least=least,
        **own,
    )


def _kinds(preparation: DocumentImages, tokens: MmprojTokens) -> Kinds:
    token = tokens.id_of(TOKEN)
    facts = KindFacts.marked(preparation, token)
    return {"image": facts}


def _channels(found: MmprojFile) -> tuple[int, int]:
    first, _, _, _ = found.shape("v.sam.neck.0.weight", 4)
    third, _, _, _ = found.shape("v.sam.net_2.weight", 4)
    return first, third


def deepseek_ocr2(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """The file's tower is what it says of the layers over convolutions; SAM's is apart."""
    layers = _query_layers(found)
    tables = [found.shape(name, 2) for name in TABLES]
    sides = [math.isqrt(count) for count, _ in tables]
    for name, side, (count, _) in zip(TABLES, sides, tables, strict=True):
        if not 0 < side * side == count <= MAX_SIDE**2:
            raise UnsupportedModel(
                f"{found.file.path}: {name} has {count} rows; a square is needed"
            )
    tower = _tower(found)
    projector = DocumentProjector(
        channels=_channels(found),
        norm=NECK_NORM,
        layers=layers,
        queries=tuple(count for count, _ in tables),
    )
    tile, page = (side * QUARTER * tower.patch for side in sides)
    preparation = _pages(found, tower, tile, page)
    return VisionSpec(tower=tower, projector=projector), _kinds(preparation, tokens)


def _tower(found: MmprojFile) -> TowerSpec:
    keys = found.keys
    hidden = bounded(keys, "sam.embedding_length", MAX_WIDTH)
    count = bounded(keys, "sam.block_count", MAX_LAYERS)
    inner, _ = found.shape("v.sam.blk.0.mlp.lin1.weight", 2)
    patch, _ = found.shape("v.sam.patch_embd.weight", 2)
    side, other, _ = found.shape("v.sam.pos_embd.weight", 3)
    if not side == other <= MAX_SIDE:
        raise UnsupportedModel(f"{found.file.path}: v.sam.pos_embd has {side} × {other} places")
    return TowerSpec(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=count,
        num_heads=heads(keys, "sam.head_count", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=1e-6, bias=True),
        activation=found.activation("gelu"),
        patch_bias=True,
        positions=LearnedPositions(side=side, stretched=True, cubic=True),
        windows=WindowSpec(
            side=bounded(keys, "window_size", MAX_SIDE),
            whole=tuple(number for number in WHOLE if number < count),
            grid=side,
        ),
    )


def _query_layers(found: MmprojFile) -> QueryLayersSpec:
    keys, hidden = found.keys, found.hidden_size()
    queries = heads(keys, "attention.head_count", hidden)
    kept = bounded(keys, "attention.head_count_kv", MAX_HEADS, queries)
    if queries % kept:
        raise keys.wrong("attention.head_count_kv", f"a divisor of {queries}")
    return QueryLayersSpec(
        hidden_size=hidden,
        intermediate_size=bounded(keys, "feed_forward_length", MAX_WIDTH),
        num_layers=found.num_layers(),
        num_heads=queries,
        num_kv_heads=kept,
        norm=NormSpec(eps=as_written(keys.number("attention.layer_norm_epsilon"))),
        theta=THETA,
    )


_IN_SAM: TowerNames = {
    "pre_ln": "norm1",
    "post_ln": "norm2",
    "attn.qkv": "qkv",
    "attn.out": "out_proj",
    "attn.pos_h.weight": "distances.rows",
    "attn.pos_w.weight": "distances.columns",
    "mlp.lin1": "up_proj",
    "mlp.lin2": "down_proj",
}
_NAMES: TowerNames = {
    **TOWER,
    **under("v.blk.*", IN_LAYER, "projector.layers.*"),
    **under("v.sam.blk.*", _IN_SAM, "layers.*"),
    "v.sam.patch_embd": "sam_embedding",
    "v.sam.pos_embd.weight": "position_grid",
    **under("v.sam.neck", NECK, "projector.neck"),
    "v.sam.net_2": "projector.smaller.0",
    "v.sam.net_3": "projector.smaller.1",
    "v.image_newline": "projector.newline",
    "v.resample_query_768": "projector.queries.0",
    "v.resample_query_1024": "projector.queries.1",
    "v.post_ln": "projector.norm",
    "v.view_seperator": "projector.end",
    "mm.model.fc": "projector.out",
}
DEEPSEEK_OCR = MmprojKind("deepseekocr", "DeepSeek-OCR", ("dots1",), deepseek_ocr, _NAMES)
DEEPSEEK_OCR2 = MmprojKind("deepseekocr2", "DeepSeek-OCR 2", ("dots1",), deepseek_ocr2, _NAMES)
