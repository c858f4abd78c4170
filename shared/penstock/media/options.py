"""Settings of media that are texts: what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from penstock.config.settings import MediaSettings
from penstock.errors import InvalidRequest, StartupError
from penstock.media_facts import MediaFacts, PatchImages, Preparation, TiledImages
from penstock.protocol.common import MediaKind

MAX_ITEMS = 256
"""Of a prompt, whatever the setting: the engine core's own bound."""


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
    TiledImages: {"do_image_splitting": "split", "longest_edge": "longest_edge"},
}
"""mm_processor_kwargs' names, of those that don't need another model."""


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
    return msgspec.structs.replace(facts, kinds=kinds)


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
        switch = name.startswith("do_")
        if isinstance(value, bool) != switch or not isinstance(value, int):
            wanted = "true or false" if switch else "a whole number"
            raise InvalidRequest(f"{where}: {name} must be {wanted}", param=where)
    made = msgspec.structs.replace(image, **{known[name]: value for name, value in values.items()})
    _check(made, where)
    return made


def narrowed(image: Preparation, given: dict[str, Any], where: str) -> Preparation:
    """`changed` for a request: what it may cost is the operator's to say, so pictures can become
    smaller than by `image`, never larger. Raises InvalidRequest."""
    made = changed(image, given, where)
    wider = None
    if isinstance(image, PatchImages) and isinstance(made, PatchImages):
        if made.max_pixels > image.max_pixels:
            wider = f"max_pixels is {made.max_pixels}; at most {image.max_pixels} are accepted"
    elif isinstance(image, TiledImages) and isinstance(made, TiledImages):
        if made.longest_edge > image.longest_edge:
            wider = f"longest_edge is {made.longest_edge}; at most {image.longest_edge} is accepted"
        elif made.split and not image.split:
            wider = "do_image_splitting is true; this server doesn't split pictures"
    if wider is not None:
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
    if isinstance(image, TiledImages) and not 1 <= image.longest_edge <= 8192:
        raise InvalidRequest(f"{where}: longest_edge must be 1 to 8192", param=where)


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
