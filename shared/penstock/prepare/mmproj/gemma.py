"""The vision towers of Gemma 3, 3n and 4 in mmproj files, and the tower that Gemma 3 shares with
others: SigLIP's."""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.gemma3n import IMAGE, SIDE, gemma3n_vision, mobilenet
from penstock.families.vision.gemma4 import (
    FORM,
    MAX_POOL,
    MAX_TABLE,
    gemma4_vision,
    of_pooled,
    positions,
)
from penstock.families.vision.gemma4_unified import unified_vision
from penstock.families.vision.image_processor import HALF
from penstock.families.vision.reading import MAX_PATCH, MAX_PIXELS, MAX_WIDTH, bounded
from penstock.families.vision.video_processor import CLASSES
from penstock.forms.fixed import FixedImages
from penstock.forms.pooled import SOFT_TOKENS, PooledImages
from penstock.forms.scanned import ScannedImages
from penstock.forms.video import FrameSampling
from penstock.model.projector_spec import NormedTwiceProjector, PoolProjector
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec
from penstock.prepare.mmproj.common_names import IN_LAYER, NOT_SEEN, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock.prepare.mmproj.videos import with_videos

SPARE_TOKENS = tuple(f"<unused{number}>" for number in range(99))
"""Unused tokens of Gemma's vocabulary: where a file lacks the token that stands for a picture's
rows, one of these does."""


def siglip_tower(found: MmprojFile, *, fractional: bool = False) -> TowerSpec:
    return found.tower(
        "layer",
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        last_norm=True,
        positions=LearnedPositions(side=found.side()[1], fractional=fractional),
    )


def gemma3(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    image, patches = found.side()
    factor = bounded(found.keys, "projector.scale_factor", patches, 4)
    if patches % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {patches}")
    tower = siglip_tower(found)
    side = patches // factor
    vision = VisionSpec(
        tower=tower,
        projector=PoolProjector(side=side, eps=tower.norm.eps, plus_one=False),
        image_size=image,
        spans_whole=True,
    )
    begin, _ = tokens.id_of("<start_of_image>")
    end, _ = tokens.id_of("<end_of_image>")
    preparation = ScannedImages(
        pixels=found.pixels(2, HALF, HALF),
        height=image,
        width=image,
        rows=side * side,
        begin=f"\n\n{begin}",
        end=f"{end}\n\n",
    )
    return vision, of_pictures(
        preparation, tokens.id_of("<image_soft_token>", *SPARE_TOKENS), begin
    )


def gemma3n(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """Reads Gemma 3n's, whose patch_size and sizes of layers mean nothing: tensors tell widths. The
    token that ends a picture is the first of the tower's own, as in all releases."""
    widths = [found.shape("v.blk.0.0.conv_pwl.weight", 4)[0]]
    widths += [found.shape(f"v.blk.{n}.0.pw_proj.conv.weight", 4)[0] for n in (1, 2, 3)]
    vocab, _ = found.shape("mm.embedding.weight", 2)
    if not 1 <= max(*widths, vocab) <= MAX_WIDTH:
        raise UnsupportedModel(f"{found.file.path}: sizes up to {MAX_WIDTH} are allowed")
    vision = gemma3n_vision(
        str(found.file.path),
        mobilenet(tuple(widths), SIDE),
        bounded(found.keys, "image_size", MAX_PIXELS, IMAGE),
        found.hidden_size(),
        NormedTwiceProjector(eps=found.norm_eps(), vocab=vocab, end=0),
    )
    pixels = found.pixels(2, *PLAIN)
    if (pixels.mean, pixels.std) == PLAIN:
        pixels = msgspec.structs.replace(pixels, mean=None, std=None)
    side = vision.image_size or IMAGE
    preparation = FixedImages(pixels=pixels, height=side, width=side, rows=SIDE * SIDE + 1)
    begin, _ = tokens.id_of("<start_of_image>")
    kinds = of_pictures(
        preparation,
        tokens.id_of("<image_soft_token>", *SPARE_TOKENS),
        before=f"\n\n{begin}",
        behind="\n\n",
    )
    return vision, kinds


def gemma4(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """What the file leaves out is what all releases have; image_size means nothing. Rows of a
    picture see one another but in models with inputs of each layer's own, E2B and E4B."""
    side = _side_of_tables(found)
    tower = found.tower(
        "rms",
        activation="gelu_tanh",
        positions=positions(side),
        clipped=found.has("v.blk.0.attn_q.input_max"),
        **FORM,
    )
    factor = bounded(found.keys, "projector.scale_factor", side, 3)
    vision = gemma4_vision(
        tower,
        factor,
        spans=found.text.per_layer_inputs is None,
        standard=found.has("v.std_bias"),
    )
    return vision, _gemma4_pictures(found, tokens, tower.patch, factor)


def _side_of_tables(found: MmprojFile) -> int:
    """Vectors of each of the two tables of positions."""
    tables, side, _ = found.shape("v.position_embd.weight", 3)
    if tables != 2 or not 1 <= side <= MAX_TABLE:
        raise UnsupportedModel(
            f"{found.file.path}: v.position_embd must have two tables of up to {MAX_TABLE} vectors"
        )
    return side


def _gemma4_pictures(found: MmprojFile, tokens: MmprojTokens, patch: int, factor: int) -> Kinds:
    """patch: pixels.  factor: patches in a row of a square."""
    pixels = found.pixels(3, *PLAIN)
    if (pixels.mean, pixels.std) == PLAIN:
        pixels = msgspec.structs.replace(pixels, mean=None, std=None)
    preparation = PooledImages(pixels=pixels, patch=patch, merge=factor, most=SOFT_TOKENS[2])
    token = tokens.id_of("<|image|>")
    before, _ = tokens.id_of("<|image>")
    behind, _ = tokens.id_of("<image|>")
    kinds = of_pictures(preparation, token, before=before, behind=behind)
    sampling = FrameSampling(num_frames=CLASSES["Gemma4VideoProcessor"]["num_frames"])
    videos = partial(of_pooled, sampling=sampling, most=SOFT_TOKENS[0])
    return with_videos(kinds, tokens, "<|video|>", videos)


def gemma4_unified(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """Reads Gemma 4 12B's, where block_count, head_count and feed_forward_length are 0."""
    patch = bounded(found.keys, "patch_size", MAX_PATCH)
    factor = bounded(found.keys, "projector.scale_factor", MAX_POOL, 3)
    vision = unified_vision(
        str(found.file.path),
        found.hidden_size(),
        patch,
        factor,
        _side_of_tables(found),
        eps=found.norm_eps(),
        spans=True,
    )
    return vision, _gemma4_pictures(found, tokens, patch, factor)


PLAIN = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
"""Mean and deviation of pixels that stay as they are."""


GEMMA3 = MmprojKind(
    "gemma3",
    "Gemma 3",
    ("gemma3",),
    gemma3,
    {**TOWER, "mm.input_projection": "projector", "mm.soft_emb_norm": "projector.norm"},
)
GEMMA3N = MmprojKind(
    "gemma3nv",
    "Gemma 3n",
    ("gemma3n",),
    gemma3n,
    {
        **NOT_SEEN,
        "v.conv_stem": "conv_stem",
        "v.msfa": "msfa",
        "v.blk": "blocks",
        "mm.embedding": "projector.embedding",
        "mm.hard_emb_norm": "projector.own_norm",
        "mm.soft_emb_norm": "projector.norm",
        "mm.input_projection": "projector",
    },
    ears="gemma3na",
)
_FOUR_NORMS: TowerNames = {"attn_post_norm": "norm2", "ln2": "norm3", "ffn_post_norm": "norm4"}
GEMMA4 = MmprojKind(
    "gemma4v",
    "Gemma 4",
    ("gemma4",),
    gemma4,
    {
        **TOWER,
        **under("v.blk.*", {**IN_LAYER, **_FOUR_NORMS}, "layers.*"),
        "v.position_embd": "axial_positions",
        "v.std_bias": "projector.std_bias",
        "v.std_scale": "projector.std_scale",
        "mm.input_projection": "projector",
    },
    ears="gemma4a",
)
GEMMA4_UNIFIED = MmprojKind(
    "gemma4uv",
    "Gemma 4 12B",
    ("gemma4",),
    gemma4_unified,
    {
        **TOWER,
        "v.patch_embd.weight": "patch_matrix.weight",
        "v.position_embd": "axial_positions",
        "v.patch_norm.1": "pixel_norm",
        "v.patch_norm.2": "patch_norm",
        "v.patch_norm.3": "first_norm",
        "mm.input_projection": "projector",
    },
    ears="gemma4ua",
)
