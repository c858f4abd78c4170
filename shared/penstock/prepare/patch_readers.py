"""How pictures are prepared of which patches are cut before a tower sees them: Qwen-VL's, GLM's,
PaddleOCR-VL's, Kimi K2.5's, Kimi-VL's and MiniMax M3's."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.forms.patches import PatchImages
from penstock.forms.pooled import SOFT_TOKENS, PooledImages
from penstock.model.media_facts import KindFacts
from penstock.prepare.image_processor import OF_REPEATED, ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens

_OF_KIMI = {
    "in_patch_limit": "max_patches",
    "image_mean": "image_mean",
    "image_std": "image_std",
    "merge_kernel_size": "merge_size",
    "patch_limit_on_one_side": "size",
    "patch_size": "patch_size",
}
"""Settings of pictures in the file of Kimi K2.5's makers, and transformers' names. The others there
are of videos."""


MINIMAX_ONLY = (
    "add_start_end_special_tokens",
    "img_token_compression_config",
    "process_image_mode",
    "size",
)
"""Settings in the file of MiniMax M3's makers that transformers doesn't have."""
MINIMAX_BEGIN, MINIMAX_END = "]<]start of image[>[", "]<]end of image[>["


def of_kimi(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings as transformers has them, of the makers' own file. Raises UnsupportedModel."""
    if not isinstance(values, dict) or values.get("fixed_output_tokens") is not None:
        raise UnsupportedModel(f"{where}: media_proc_cfg must leave fixed_output_tokens null")
    found = {ours: values[name] for name, ours in _OF_KIMI.items() if name in values}
    if "size" in found:
        found["size"] = {"max_height": found["size"], "max_width": found["size"]}
    return found | {"image_processor_type": "Kimi_K25ImageProcessor"}


def of_minimax(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The settings as transformers has them, of the makers' own file. Its size is that of older
    models, and no picture gets it. Raises UnsupportedModel."""
    if values["process_image_mode"] != "dynamic_res":
        raise UnsupportedModel(f"{where}: process_image_mode must be dynamic_res")
    merging = values.get("img_token_compression_config")
    if not isinstance(merging, dict):
        raise UnsupportedModel(f"{where}: img_token_compression_config must be a JSON object")
    named = {"spatial_merge_size": "merge_size", "temporal_patch_size": "temporal_patch_size"}
    found = {ours: merging[theirs] for theirs, ours in named.items() if theirs in merging}
    kept = {key: value for key, value in values.items() if key not in MINIMAX_ONLY}
    return {"image_processor_type": "MiniMaxM3VLImageProcessor"} | found | kept


def paddleocr_vl(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The makers' own class is called like SigLIP's, whose size means nothing here. A patch is of
    one frame, whatever config.json says of videos."""
    size = (384 * 384, 1536 * 1536)
    if settings.kind == "SiglipImageProcessor":
        settings.ignore("size", "do_center_crop")
    else:
        size = settings.sizes("size", *size)
    vision = config.section("vision_config").replaced({"temporal_patch_size": 1})
    return _in_patches(settings, vision, tokens, size, frames=1, widened=True)


def kimi_k25(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    size = settings.section("size")
    longest = size.integer("max_height", 512)
    if size.integer("max_width", longest) != longest or not 1 <= longest <= 4096:
        raise settings.wrong("size", "one max_height and max_width, 1 to 4096 patches,")
    merge, most = settings.integer("merge_size", 2), settings.integer("max_patches", 16_384)
    named = ("merge_size", [merge, merge]), ("max_patches", most)
    return _never_larger(settings, config, tokens, *named, longest)


def kimi_vl(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Its makers refuse a picture with a side of more patches than their rotation has places,
    which is made smaller here, as Kimi K2.5's is."""
    if not settings.flag("pad_input", False):
        raise settings.wrong("pad_input", "true")
    settings.ignore("num_pooled_tokens")
    named = "merge_kernel_size"
    merge = named, settings.listed(named, int) if named in settings else [2, 2]
    most = "in_token_limit", settings.integer("in_token_limit", 4096)
    return _never_larger(settings, config, tokens, merge, most, 512)


def _never_larger(
    settings: ImageSettings,
    config: Fields,
    tokens: MediaTokens,
    merged: tuple[str, list[int]],
    limit: tuple[str, int],
    longest: int,
) -> KindFacts:
    """merged: patches each way that become one row, and the name of that setting.  limit: patches
    that a picture has at most, and the name.  longest: patches that a side has at most."""
    patch, vision = settings.integer("patch_size", 14), config.section("vision_config")
    sides = vision.listed("merge_kernel_size", int) if "merge_kernel_size" in vision else [2, 2]
    (merge_name, square), (most_name, most) = merged, limit
    if patch != vision.integer("patch_size", 14) or not 1 <= patch <= 1024:
        raise settings.wrong("patch_size", "what the vision tower has")
    if square != sides or len(set(square)) != 1 or not 1 <= square[0] <= 64:
        raise settings.wrong(merge_name, "what the vision tower has")
    merge = square[0]
    if not merge**2 <= most <= (1 << 28) // patch**2:
        raise settings.wrong(most_name, f"{merge**2} to {(1 << 28) // patch**2}")
    image = PatchImages(
        pixels=pixels_of(settings),
        min_pixels=(patch * merge) ** 2,
        max_pixels=most * patch**2,
        patch=patch,
        merge=merge,
        frames=1,
        most_side=longest,
    )
    token, token_id = tokens.named("media_placeholder_token_id", "image_token_id")
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


def gemma4(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Patches are cut in the tower, of pictures of whole squares of them."""
    vision = config.section("vision_config")
    image = PooledImages(
        pixels=pixels_of(settings),
        patch=settings.integer("patch_size", 16),
        merge=settings.integer("pooling_kernel_size", 3),
        most=settings.integer("max_soft_tokens", SOFT_TOKENS[2]),
    )
    if image.patch != vision.integer("patch_size", 16) or not 1 <= image.patch <= 1024:
        raise settings.wrong("patch_size", "what the vision tower has")
    if image.merge != vision.integer("pooling_kernel_size", 3) or not 1 <= image.merge <= 64:
        raise settings.wrong("pooling_kernel_size", "what the vision tower has")
    if image.most not in SOFT_TOKENS:
        raise settings.wrong("max_soft_tokens", f"one of {', '.join(map(str, SOFT_TOKENS))}")
    token, token_id = tokens.named("image_token_id")
    before, _ = tokens.named("boi_token_id")
    behind, _ = tokens.named("eoi_token_id")
    return KindFacts(
        preparation=image,
        placeholder=token,
        token=token,
        token_id=token_id,
        before=before,
        behind=behind,
    )


def minimax_m3(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    size = settings.sizes("size", 4 * 28 * 28, 672 * 672)
    vision = config.section("vision_config")
    merging = vision.section("img_token_compression_config")
    found = _in_patches(settings, vision.completed(**merging.values), tokens, size)
    for text in (MINIMAX_BEGIN, MINIMAX_END):
        tokens.check(text)
    return msgspec.structs.replace(found, before=MINIMAX_BEGIN, behind=MINIMAX_END)


def qwen2_vl(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    size = settings.sizes("size", 56 * 56, 28 * 28 * 1280)
    return _in_patches(settings, config.section("vision_config"), tokens, size)


def _in_patches(
    settings: ImageSettings,
    vision: Fields,
    tokens: MediaTokens,
    size: tuple[int, int],
    *,
    frames: int = 2,
    widened: bool = False,
) -> KindFacts:
    """size: least and most pixels, where min_pixels and max_pixels don't say. frames: of a patch,
    where the settings don't say. widened: as PatchImages has it."""
    image = PatchImages(
        pixels=pixels_of(settings),
        min_pixels=settings.integer("min_pixels", size[0]),
        max_pixels=settings.integer("max_pixels", size[1]),
        patch=settings.integer("patch_size", 14),
        merge=settings.integer("merge_size", 2),
        frames=settings.integer("temporal_patch_size", frames),
        widened=widened,
        of_all=settings.kind in OF_REPEATED,
    )
    stated = (
        ("patch_size", image.patch, vision.optional_integer("patch_size")),
        ("merge_size", image.merge, vision.optional_integer("spatial_merge_size")),
        ("temporal_patch_size", image.frames, vision.optional_integer("temporal_patch_size")),
    )
    for key, ours, tower in stated:
        if not 1 <= ours <= 1024 or tower not in (None, ours):
            raise settings.wrong(key, f"what the vision tower has ({tower})")
    if not 1 <= image.min_pixels <= image.max_pixels <= 1 << 28:
        raise UnsupportedModel(
            f"{settings.where}: pictures are to have {image.min_pixels} to {image.max_pixels} "
            f"pixels; 1 to {1 << 28}, ascending, are allowed"
        )
    token, token_id = tokens.named("image_token_id", "image_token_index")
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)
