"""How MiniCPM-V's pictures are prepared: 4.6's by transformers' settings, older ones by their
makers'."""

from __future__ import annotations

from typing import Any

from penstock.families import hub_reading as hub
from penstock.families.vision.minicpmv import QUERIES
from penstock.formats.fields import Fields
from penstock.forms.sliced import SlicedImages
from penstock.model.media_facts import KindFacts
from penstock.prepare.image_processor import MAX_SIDE, ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens
from penstock.prepare.picture_readers import MAX_TILES

SLICE_NUMBER = "<image_id>", "</image_id>"
"""Around the number of a picture of MiniCPM-V's."""


def minicpmv4_6(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    mode = config.text("downsample_mode", "16x")
    if settings.text("downsample_mode", "16x") != mode:
        raise settings.wrong("downsample_mode", f"what config.json says ({mode})")
    image = _sliced(settings, config, merge=2 if mode == "4x" else 4)
    token, token_id = tokens.named("image_token_id")
    numbered = _numbered(settings, tokens, image)
    return KindFacts(
        preparation=image, placeholder=token, token=token, token_id=token_id, numbered=numbered
    )


PLACEHOLDER = "(<image>./</image>)"
"""What stands for a picture in a prompt of the makers'."""
TOKEN = "<unk>"
"""What stands for an embedding."""
AROUND: dict[str, object] = {
    "im_start": "<image>",
    "im_end": "</image>",
    "slice_start": "<slice>",
    "slice_end": "</slice>",
    "im_id_start": SLICE_NUMBER[0],
    "im_id_end": SLICE_NUMBER[1],
    "unk": TOKEN,
}
"""The makers' settings of texts around embeddings, of which all releases have these."""


def of_minicpm(values: dict[str, Any]) -> dict[str, Any]:
    """The makers' settings, with transformers' names of two of them."""
    names = {"norm_mean": "image_mean", "norm_std": "image_std"}
    return {names.get(key, key): value for key, value in values.items()}


def minicpmv(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    queries = config.integer("query_num", QUERIES)
    hub.only(settings, image_feature_size=queries, **AROUND)
    settings.ignore("version")
    image = _sliced(settings, config, whole=1, queries=queries)
    token, token_id = tokens.called(TOKEN)
    return KindFacts(
        preparation=image,
        placeholder=PLACEHOLDER,
        token=token,
        token_id=token_id,
        numbered=_numbered(settings, tokens, image),
    )


def _sliced(
    settings: ImageSettings, config: Fields, *, merge: int = 4, whole: int = 4, queries: int = 0
) -> SlicedImages:
    """merge, whole, queries: of the model, as SlicedImages has them."""
    patch = config.section("vision_config").integer("patch_size", 14)
    if settings.integer("patch_size", 14) != patch or not 1 <= patch <= 1024:
        raise settings.wrong("patch_size", f"what the vision tower has ({patch})")
    scale, most = settings.integer("scale_resolution", 448), settings.integer("max_slice_nums", 9)
    if not 1 <= scale <= MAX_SIDE:
        raise settings.wrong("scale_resolution", f"1 to {MAX_SIDE} pixels")
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("max_slice_nums", f"1 to {MAX_TILES}")
    return SlicedImages(
        pixels=pixels_of(settings),
        patch=patch,
        merge=merge,
        whole=whole,
        scale=scale,
        most=most,
        split=settings.flag("slice_mode", True),
        queries=queries,
    )


def _numbered(settings: ImageSettings, tokens: MediaTokens, image: SlicedImages) -> tuple[str, str]:
    """KindFacts.numbered. Raises UnsupportedModel for a tokenizer without the tokens around
    embeddings."""
    numbered = SLICE_NUMBER if settings.flag("use_image_id", True) else ("", "")
    for text in (image.begin, image.end, image.slice_begin, image.slice_end, *numbered):
        if text:
            tokens.check(text)
    return numbered
