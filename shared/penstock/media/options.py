"""Settings of media that are texts: what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.config.settings import MediaSettings
from penstock.errors import InvalidRequest, StartupError
from penstock.media_facts import (
    CanvasImages,
    MediaFacts,
    PatchImages,
    Preparation,
    RowImages,
    ScannedImages,
    TiledImages,
)
from penstock.protocol.common import MediaKind

MAX_ITEMS = 256
"""Of a prompt, whatever the setting: the engine core's own bound."""
MAX_TILES = 64
"""Of a canvas."""


def item_limits(settings: MediaSettings) -> dict[MediaKind, int]:
    """Items of each kind that a prompt may hold; kinds that aren't named: the default's.

    Raises StartupError.
    """
    default: dict[MediaKind, int] = {"image": 16, "audio": 16, "video": 16}
    stated = _object("limit_mm_per_prompt", settings.limit_mm_per_prompt)
    for kind, value in stated.items():
        count = value.get("count") if isinstance(value, dict) else value  # vLLM has both forms
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_ITEMS:
            raise StartupError(
                f"limit_mm_per_prompt: {kind} is {value!r}; 0 to {MAX_ITEMS} items are allowed"
            )
        if kind not in default:
            raise StartupError(
                f"limit_mm_per_prompt: {kind[:80]!r} is no kind of media; {', '.join(default)} are"
            )
        default[cast(MediaKind, kind)] = count
    return default


def domains(settings: MediaSettings) -> frozenset[str]:
    """Names that media may be fetched from. Raises StartupError."""
    given = settings.allowed_media_domains.strip()
    if not given.startswith("["):
        return frozenset(name.strip().lower() for name in given.split(",") if name.strip())
    try:
        names = msgspec.json.decode(given.encode(), type=list[str])
    except msgspec.DecodeError:
        raise StartupError(
            f"allowed_media_domains is {given[:80]}; names with commas or a JSON list is needed"
        ) from None
    return frozenset(name.strip().lower() for name in names if name.strip())


def local_folder(settings: MediaSettings) -> Path | None:
    """The folder whose files may be named, links resolved. Raises StartupError."""
    if not settings.allowed_local_media_path:
        return None
    folder = Path(settings.allowed_local_media_path).expanduser().resolve()
    if not folder.is_dir():
        raise StartupError(
            f"allowed_local_media_path is {settings.allowed_local_media_path}, which is no folder"
        )
    return folder


_CHANGES: dict[type, dict[str, str]] = {
    PatchImages: {"min_pixels": "min_pixels", "max_pixels": "max_pixels"},
    CanvasImages: {"crop_to_patches": "split", "max_patches": "most"},
    RowImages: {"longest_edge": "longest_edge"},
    ScannedImages: {
        "do_pan_and_scan": "scan",
        "pan_and_scan_max_num_crops": "most",
        "pan_and_scan_min_crop_size": "least",
        "pan_and_scan_min_ratio_to_activate": "ratio",
    },
    TiledImages: {"do_image_splitting": "split", "longest_edge": "longest_edge"},
}
"""mm_processor_kwargs' names, of those that don't need another model."""


_NO_COST = frozenset(
    {"min_pixels", "pan_and_scan_min_crop_size", "pan_and_scan_min_ratio_to_activate"}
)
"""Those that another one bounds."""


def facts_with(
    facts: MediaFacts, operators: dict[str, Any], requests: dict[str, Any]
) -> MediaFacts:
    """With both mm_processor_kwargs, the operator's and a request's. Raises InvalidRequest."""
    if not operators and not requests:
        return facts
    kinds = dict(facts.kinds)
    where = "mm_processor_kwargs"
    changeable = [kind for kind in kinds if type(kinds[kind].preparation) in _CHANGES]
    for kind in changeable or kinds:
        made = changed(kinds[kind].preparation, operators, where)
        made = narrowed(made, requests, where)
        kinds[kind] = msgspec.structs.replace(kinds[kind], preparation=made)
    return MediaFacts(kinds=kinds)


def changed(image: Preparation, given: dict[str, Any], where: str) -> Preparation:
    """The preparation with other settings. where: who gave them, for messages.

    Raises InvalidRequest for one that this preparation doesn't have, and for a wrong value.
    """
    if not given:
        return image
    known = _CHANGES.get(type(image), {})
    values = dict(given)
    if isinstance(values.get("size"), dict):
        values |= _of_size(values.pop("size"), image)
    for name, value in values.items():
        if name not in known:
            raise InvalidRequest(
                f"{where}: {name[:80]} can't be changed for this model; allowed: "
                f"{', '.join(known) or 'nothing'}",
                param=where,
            )
        wanted = _kind_of(getattr(image, known[name]))
        if not _fits(value, wanted):
            raise InvalidRequest(f"{where}: {name} must be {wanted}", param=where)
    made = msgspec.structs.replace(image, **{known[name]: value for name, value in values.items()})
    _check(made, where)
    return made


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, float) else "a whole number"


def _fits(value: object, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "true or false"
    return isinstance(value, int if wanted == "a whole number" else (int, float)) and (
        wanted != "true or false"
    )


def narrowed(image: Preparation, given: dict[str, Any], where: str) -> Preparation:
    """`changed` for a request: what it may cost is the operator's to say, so pictures can become
    smaller than by `image`, never larger. Raises InvalidRequest."""
    made = changed(image, given, where)
    for name, field in _CHANGES.get(type(image), {}).items():
        has, wants = getattr(image, field), getattr(made, field)
        if name in _NO_COST or wants <= has:  # a switch that is on is more than one that's off
            continue
        wider = f"{name} is {wants}; at most {has} is accepted"
        if wants is True:
            wider = f"{name} is true; this server doesn't split pictures"
        raise InvalidRequest(
            f"{where}: {wider} (the server's own --mm-processor-kwargs can raise it)", param=where
        )
    return made


def _of_size(size: dict[str, Any], image: Preparation) -> dict[str, Any]:
    """The newer spelling of the same."""
    if isinstance(image, PatchImages):
        names = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
        return {names.get(key, key): value for key, value in size.items()}
    return size


def _check(image: Preparation, where: str) -> None:
    if isinstance(image, PatchImages):
        least = (image.patch * image.merge) ** 2
        if not least <= image.min_pixels <= image.max_pixels <= 1 << 28:
            raise InvalidRequest(
                f"{where}: min_pixels and max_pixels must be ascending, from {least} to {1 << 28}",
                param=where,
            )
    if isinstance(image, CanvasImages) and not image.least <= image.most <= MAX_TILES:
        raise InvalidRequest(
            f"{where}: max_patches must be {image.least} to {MAX_TILES}", param=where
        )
    if isinstance(image, ScannedImages):
        _check_crops(image, where)
    if isinstance(image, (TiledImages, RowImages)) and not 1 <= image.longest_edge <= 8192:
        raise InvalidRequest(f"{where}: longest_edge must be 1 to 8192", param=where)


def _check_crops(image: ScannedImages, where: str) -> None:
    # A crop has as many pixels as there are crops, so that the last one isn't empty.
    if not 2 <= image.most <= MAX_TILES or not MAX_TILES <= image.least <= 8192:
        raise InvalidRequest(
            f"{where}: pan_and_scan_max_num_crops must be 2 to {MAX_TILES}, and "
            f"pan_and_scan_min_crop_size {MAX_TILES} to 8192",
            param=where,
        )
    if not 1.0 <= image.ratio <= 1000.0:
        raise InvalidRequest(
            f"{where}: pan_and_scan_min_ratio_to_activate must be 1 to 1000", param=where
        )


def processor_settings(settings: MediaSettings) -> dict[str, Any]:
    """The operator's mm_processor_kwargs. Raises StartupError."""
    return _object("mm_processor_kwargs", settings.mm_processor_kwargs)


def _object(name: str, text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise StartupError(f"{name} is {text[:80]}; a JSON object is needed") from None
