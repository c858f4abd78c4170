"""How pictures are prepared that become tiles, rows that a token ends, or one vector: InternVL's,
Llama 4's, LLaVA-OneVision's, LLaVA-NeXT's, LFM2-VL's, MiniCPM-V's and DeepSeek-OCR's; Pixtral's and
LightOnOCR's; CLIP's and SigLIP's."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.vision.deepseek_ocr2 import QUERIES
from penstock.families.vision.granite4_vision import downsampling
from penstock.families.vision.llava import most_tiles, pinpoints
from penstock.families.vision.llava_next import FORMS as NEXT_FORMS
from penstock.families.vision.llava_next import most_of
from penstock.formats.fields import Fields
from penstock.forms.anyres import AnyresImages
from penstock.forms.canvas import CanvasImages
from penstock.forms.documents import DocumentImages
from penstock.forms.fitted import FittedImages
from penstock.forms.fixed import FixedImages
from penstock.forms.naflex import NaflexImages
from penstock.forms.rows import RowImages
from penstock.model.document_spec import QUARTER
from penstock.model.media_facts import KindFacts
from penstock.prepare.image_processor import MAX_SIDE, ImageSettings, fixed_size, pixels_of
from penstock.prepare.media_tokens import MediaTokens

BEGIN, END = "<img>", "</img>"
"""Around InternVL's embeddings."""
NAFLEX_BEGIN, NAFLEX_END = "<|image_start|>", "<|image_end|>"
"""Around LFM2-VL's."""
MAX_TILES = 64
_MAX_ROWS = 65_536


def internvl(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """`crop_to_patches` is on whatever the file says, as in transformers' InternVLProcessor."""
    settings.ignore("crop_to_patches")
    side, patch = _tile(settings, config)
    factor = round(1 / (config.number("downsample_ratio", 0.5) or 1))
    rows = (side // patch // max(factor, 1)) ** 2
    if not 1 <= rows <= _MAX_ROWS or config.integer("image_seq_length", rows) != rows:
        raise config.wrong("image_seq_length", f"what the tower gives for a tile ({rows})")
    least, most = settings.integer("min_patches", 1), settings.integer("max_patches", 12)
    if not 1 <= least <= most <= MAX_TILES:
        raise settings.wrong("max_patches", f"min_patches to {MAX_TILES} tiles")
    token, token_id = tokens.named("image_token_id")
    for text in (BEGIN, END):
        tokens.check(text)
    image = CanvasImages(pixels=pixels_of(settings), tile=side, rows=rows, least=least, most=most)
    return KindFacts(
        preparation=image,
        placeholder=token,
        token=token,
        token_id=token_id,
        before=BEGIN,
        behind=END,
    )


def qianfan_ocr(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """InternVL's, but for what its template writes."""
    return msgspec.structs.replace(internvl(settings, config, tokens), placeholder="<image>")


def pixtral(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Pictures of a Pixtral tower alone, or of one before a product that merges squares of its
    patches."""
    merged = "Mistral3ForConditionalGeneration" in config.listed("architectures", str)
    return _in_rows(settings, config, tokens, merge=2 if merged else 0)


def lighton_ocr(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """No token stands between rows. A release's pictures are in whole squares of patches, whatever
    patch_size says, as its own processor had them; transformers 5.17 goes by patch_size."""
    return _in_rows(settings, config, tokens, merge=2, row_end="", end="")


def _in_rows(
    settings: ImageSettings, config: Fields, tokens: MediaTokens, *, merge: int, **around: str
) -> KindFacts:
    """merge: patches in a row of a square that becomes one embedding, where config.json doesn't
    say; 0: none are merged. around: RowImages' texts."""
    longest = settings.section("size").integer("longest_edge", 1024)
    if not 1 <= longest <= MAX_SIDE:
        raise settings.wrong("size", f"a longest_edge of 1 to {MAX_SIDE} pixels")
    if settings.flag("do_center_crop", False):
        raise settings.wrong("do_center_crop", "false")
    settings.ignore("crop_size")
    patch = config.section("vision_config").integer("patch_size", 16)
    merge = config.integer("spatial_merge_size", merge) if merge else 1
    if not 1 <= merge <= 64:
        raise config.wrong("spatial_merge_size", "1 to 64")
    sides = [patch] if not around else [patch, patch * merge]
    if not 1 <= patch <= 1024 or settings.side("patch_size") not in [
        (each, each) for each in sides
    ]:
        raise settings.wrong("patch_size", f"what the vision tower has ({patch})")
    image = RowImages(
        pixels=pixels_of(settings), longest_edge=longest, patch=patch * merge, **around
    )
    token, token_id = tokens.named("image_token_index", "image_token_id")
    for text in filter(None, (image.row_end, image.end)):
        tokens.check(text)
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


def onevision(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    if settings.flag("do_center_crop", False):
        raise settings.wrong("do_center_crop", "false")
    settings.ignore("do_pad", "crop_size")  # of a batch; of a crop that isn't made
    tile, patch = _tile(settings, config)
    forms = pinpoints(config, tile)
    if pinpoints(settings, tile) != forms:
        raise settings.wrong("image_grid_pinpoints", "what config.json says")
    image = AnyresImages(
        pixels=pixels_of(settings),
        tile=tile,
        side=tile // patch,
        forms=forms,
        most=most_tiles(config),
    )
    token, token_id = tokens.named("image_token_index", "image_token_id")
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


def llava_next(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The middle of a tile that is cut out is all of it."""
    vision = config.section("vision_config")
    tile, patch = _side(vision, "image_size", 336), _side(vision, "patch_size", 14)
    size = settings.values.get("size")
    edge = isinstance(size, dict) and "shortest_edge" in size
    whole = settings.section("size").integer("shortest_edge") if edge else settings.side("size")
    crop = settings.side("crop_size") if settings.values.get("crop_size") else (tile, tile)
    settings.ignore("crop_size", "do_center_crop", "do_pad")
    if whole not in (tile, (tile, tile)) or crop != (tile, tile) or not 1 <= patch <= tile:
        raise settings.wrong("size", f"what the vision tower has ({tile}), as crop_size")
    forms = pinpoints(config, tile, NEXT_FORMS)
    if pinpoints(settings, tile, NEXT_FORMS) != forms:
        raise settings.wrong("image_grid_pinpoints", "what config.json says")
    image = AnyresImages(
        pixels=pixels_of(settings),
        tile=tile,
        side=tile // patch,
        forms=forms,
        most=most_of(forms, tile),
    )
    token, token_id = tokens.named("image_token_index", "image_token_id")
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


def granite4_vision(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """A tile has fewer embeddings than patches."""
    facts = llava_next(settings, config, tokens)
    image = facts.preparation
    if not isinstance(image, AnyresImages):
        raise settings.wrong("image_processor_type", "LLaVA-NeXT's")
    queries, window = downsampling(config)
    side = image.side // window * queries
    return msgspec.structs.replace(facts, preparation=msgspec.structs.replace(image, side=side))


def lfm2_vl(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    settings.ignore("do_pad", "size", "crop_size", "max_num_patches")  # follow from the others
    hub.only(settings, use_image_special_tokens=True)
    sizes = {
        "encoder_patch_size": (16, 1024),
        "downsample_factor": (2, 64),
        "tile_size": (512, MAX_SIDE),
        "min_image_tokens": (64, _MAX_ROWS),
        "max_image_tokens": (256, _MAX_ROWS),
        "min_tiles": (2, MAX_TILES),
        "max_tiles": (10, MAX_TILES),
    }
    found = {}
    for key, (usual, most) in sizes.items():
        found[key] = settings.integer(key, usual)
        if not 1 <= found[key] <= most:
            raise settings.wrong(key, f"1 to {most}")
    image = NaflexImages(
        pixels=pixels_of(settings),
        patch=found["encoder_patch_size"],
        merge=found["downsample_factor"],
        min_rows=found["min_image_tokens"],
        max_rows=found["max_image_tokens"],
        tile=found["tile_size"],
        large=settings.number("max_pixels_tolerance", 2.0),
        least=found["min_tiles"],
        most=found["max_tiles"],
        split=settings.flag("do_image_splitting", True),
        whole=settings.flag("use_thumbnail", True),
    )
    vision = config.section("vision_config")
    stated = {
        "encoder_patch_size": (image.patch, vision.integer("patch_size", 16)),
        "downsample_factor": (image.merge, config.integer("downsample_factor", 2)),
    }
    for key, (ours, model) in stated.items():
        if ours != model:
            raise settings.wrong(key, f"what config.json says ({model})")
    if image.tile % image.square:
        raise settings.wrong("tile_size", f"a multiple of {image.square}")
    if image.min_rows > image.max_rows:
        raise settings.wrong("min_image_tokens", f"at most {image.max_rows}")
    if not 2 <= image.least <= image.most:
        raise settings.wrong("min_tiles", f"2 to {image.most}")
    if not 0.1 <= image.large <= 1000:
        raise settings.wrong("max_pixels_tolerance", "0.1 to 1000")
    token, token_id = tokens.named("image_token_id", "image_token_index")
    for text in (NAFLEX_BEGIN, NAFLEX_END, "<|img_thumbnail|>", "<|img_row_1_col_1|>"):
        tokens.check(text)
    return KindFacts(
        preparation=image,
        placeholder=token,
        token=token,
        token_id=token_id,
        before=NAFLEX_BEGIN,
        behind=NAFLEX_END,
    )


def deepseek_ocr(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """DeepSeek-OCR's pictures are prepared in the mode that the makers' code has by default
    ("Gundam"), which no file says."""
    return _document(settings, config, tokens, 640, lines=True, most=9)


def deepseek_ocr2(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """How many tiles there may be isn't the file's to say, as in transformers'
    DeepseekOcr2Processor."""
    settings.ignore("crop_to_patches", "min_patches", "max_patches")
    return _document(settings, config, tokens, settings.integer("tile_size", 768))


def _document(
    settings: ImageSettings, config: Fields, tokens: MediaTokens, tile: int, **own: Any
) -> KindFacts:
    """tile: side, pixels.  own: further fields of DocumentImages."""
    patch = _side(config.section("vision_config").section("sam_config"), "patch_size", 16)
    page, wide = settings.side("size")
    if not 1 <= patch <= 1024 or page != wide:
        raise settings.wrong("size", "a square")
    rows = [(-(-side // (patch * QUARTER))) ** 2 for side in (tile, page)]
    for key, count in zip(("tile_size", "size"), rows, strict=True):
        if not own and count not in QUERIES:
            raise settings.wrong(key, f"pictures of {' or '.join(map(str, QUERIES))} embeddings")
    colours = settings.listed("background_color", int) if "background_color" in settings else [127]
    if len(colours) not in (1, 3) or not all(0 <= colour <= 255 for colour in colours):
        raise settings.wrong("background_color", "three numbers of 0 to 255")
    red, green, blue = colours * (3 // len(colours))
    image = DocumentImages(
        pixels=pixels_of(settings),
        patch=patch,
        tile=tile,
        page=page,
        tile_rows=rows[0],
        page_rows=rows[1],
        background=(red, green, blue),
        **own,
    )
    named = "image_token_id" in config
    token, token_id = tokens.named("image_token_id") if named else tokens.called("<image>")
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


def of_deepseek(values: dict[str, Any]) -> dict[str, Any]:
    """What the makers' processor_config.json says, as transformers' image processor has it; empty
    for another processor's."""
    if values.get("processor_class") != "DeepseekVLV2Processor":
        return {}
    said: dict[str, Any] = {
        key: values[key] for key in ("image_mean", "image_std") if key in values
    }
    normalised = {"do_normalize": values.get("normalize", True)}
    return {"image_processor_type": "DeepseekOcr2ImageProcessor", **normalised, **said}


def llama4(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    settings.ignore("do_center_crop", "crop_size", "do_pad")  # not known to this processor
    if settings.flag("resize_to_max_canvas", False):
        raise settings.wrong("resize_to_max_canvas", "false")
    tile, patch = _tile(settings, config)
    ratio = config.section("vision_config").number("pixel_shuffle_ratio", 0.5)
    rows = (tile // patch) ** 2 // max(round(1 / (ratio * ratio or 1)), 1)
    if not 1 <= rows <= _MAX_ROWS:
        raise config.wrong("pixel_shuffle_ratio", f"one that leaves 1 to {_MAX_ROWS} embeddings")
    most = settings.integer("max_patches", 16)
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("max_patches", f"1 to {MAX_TILES} tiles")
    pixels = pixels_of(settings)
    if pixels.rescale is None or pixels.mean is None:
        raise settings.wrong("do_rescale", "true, and do_normalize")
    image = FittedImages(
        pixels=msgspec.structs.replace(pixels, rounded=True), tile=tile, rows=rows, most=most
    )
    token, token_id = tokens.named("image_token_index", "image_token_id")
    begin, _ = tokens.named("boi_token_index", "boi_token_id")
    end, _ = tokens.named("eoi_token_index", "eoi_token_id")
    for text in (image.tile_end, image.row_end, image.whole):
        tokens.check(text)
    return KindFacts(
        preparation=image,
        placeholder=image.whole,
        token=token,
        token_id=token_id,
        before=begin,
        behind=end,
    )


def _tile(settings: ImageSettings, config: Fields) -> tuple[int, int]:
    """Sides of a tile and of a patch, in pixels."""
    height, width = settings.side("size")
    vision = config.section("vision_config")
    patch = _side(vision, "patch_size", 14)
    image = _side(vision, "image_size", height)
    if not (height == width == image) or not 1 <= patch <= height:
        raise UnsupportedModel(
            f"{vision.where}: tiles of {image} pixels in patches of {patch} are seen, but pictures "
            f"are prepared as {height} × {width}"
        )
    return height, patch


def _side(fields: Fields, key: str, default: int) -> int:
    """Side of a square, where config.json may give both of its sides."""
    value = fields.values.get(key)
    if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]:
        return fields.listed(key, int)[0]
    return fields.integer(key, default)


def in_shared_space(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """CLIP's and SigLIP's: a picture is an input by itself, of which one vector is made."""
    height, width, edge, resized = fixed_size(settings)
    side = config.section("vision_config").optional_integer("image_size")
    if height != width or side not in (None, height):
        raise UnsupportedModel(
            f"{settings.where}: pictures are prepared as {height} × {width}; the model takes "
            f"{side or 'squares'}"
        )
    image = FixedImages(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=1,
        shortest_edge=edge,
        resized=resized,
    )
    return KindFacts(preparation=image, placeholder="", token="", token_id=0)
