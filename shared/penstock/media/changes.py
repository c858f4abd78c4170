"""mm_processor_kwargs: how preparations are changed by an operator, and by a request."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.options import FrameSettings
from penstock.media_facts import MediaFacts, PatchImages, Preparation, TiledImages, VideoFrames

MAX_FPS = 1000
_WHERE = "mm_processor_kwargs"
_OF_SIZE = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
"""The newer spelling, under `size`."""
_CHANGES: dict[type, dict[str, str]] = {
    PatchImages: {"min_pixels": "min_pixels", "max_pixels": "max_pixels"},
    VideoFrames: {
        "min_pixels": "min_pixels",
        "max_pixels": "max_pixels",
        "num_frames": "num_frames",
        "fps": "fps",
    },
    TiledImages: {"do_image_splitting": "split", "longest_edge": "longest_edge"},
}
"""Names of those that don't need another model -> ours."""
_OF_SAMPLING = ("num_frames", "fps")


def facts_with(
    facts: MediaFacts, operators: dict[str, Any], requests: dict[str, Any]
) -> MediaFacts:
    """With both mm_processor_kwargs, the operator's and a request's. Each kind of media takes the
    settings that it has. Raises InvalidRequest for one that none has."""
    if not operators and not requests:
        return facts
    kinds = dict(facts.kinds)
    known = [_known(each.preparation) for each in kinds.values()]
    for name in (*operators, *requests):
        if not any(name in names for names in known):
            raise _unknown(name, list(dict.fromkeys(name for names in known for name in names)))
    for kind, each in kinds.items():
        made = changed(each.preparation, _own(each.preparation, operators), _WHERE)
        made = narrowed(made, _own(each.preparation, requests), _WHERE)
        kinds[kind] = msgspec.structs.replace(each, preparation=made)
    return msgspec.structs.replace(facts, kinds=kinds)


def with_frames(facts: MediaFacts, settings: FrameSettings) -> MediaFacts:
    """With what the operator says of videos' frames."""
    found = facts.kinds.get("video")
    if found is None or not isinstance(found.preparation, VideoFrames):
        return facts
    sampling = found.preparation.sampling
    most = min(sampling.max_frames, settings.most)
    sampling = msgspec.structs.replace(
        sampling, max_frames=most, min_frames=min(sampling.min_frames, most)
    )
    if settings.num_frames is not None or settings.fps is not None:
        sampling = msgspec.structs.replace(
            sampling, num_frames=settings.num_frames or 0, fps=settings.fps or 0.0
        )
    video = msgspec.structs.replace(found.preparation, sampling=sampling)
    kinds = {**facts.kinds, "video": msgspec.structs.replace(found, preparation=video)}
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
        size = values.pop("size")
        sized = isinstance(image, (PatchImages, VideoFrames))
        values |= {_OF_SIZE.get(key, key): size[key] for key in size} if sized else size
    for name, value in values.items():
        if name not in known:
            raise _unknown(name, list(known))
        _check_type(name, value, where)
    named = {known[name]: value for name, value in values.items()}
    if isinstance(image, VideoFrames):
        sampling = {name: named.pop(name) for name in _OF_SAMPLING if name in named}
        named["sampling"] = msgspec.structs.replace(image.sampling, **sampling)
    made = msgspec.structs.replace(image, **named)
    _check(made, where)
    return made


def narrowed(image: Preparation, given: dict[str, Any], where: str) -> Preparation:
    """`changed` for a request: what it may cost is the operator's to say, so pictures can become
    smaller than by `image`, and frames fewer, never larger or more. Raises InvalidRequest."""
    made = changed(image, given, where)
    wider = None
    if isinstance(image, (PatchImages, VideoFrames)) and isinstance(made, type(image)):
        if made.max_pixels > image.max_pixels:
            wider = f"max_pixels is {made.max_pixels}; at most {image.max_pixels} are accepted"
        elif isinstance(image, VideoFrames) and isinstance(made, VideoFrames):
            wider = _more_frames(image, made)
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


def _more_frames(image: VideoFrames, made: VideoFrames) -> str | None:
    ours, theirs = image.sampling, made.sampling
    most = min(ours.num_frames or ours.max_frames, ours.max_frames)
    if theirs.num_frames > most:
        return f"num_frames is {theirs.num_frames}; at most {most} are accepted"
    if ours.fps and theirs.fps > ours.fps:
        return f"fps is {theirs.fps:g}; at most {ours.fps:g} is accepted"
    return None


def _known(preparation: Preparation) -> tuple[str, ...]:
    known = _CHANGES.get(type(preparation), {})
    return (*known, "size") if "min_pixels" in known else tuple(known)


def _own(preparation: Preparation, given: dict[str, Any]) -> dict[str, Any]:
    known = _known(preparation)
    return {name: value for name, value in given.items() if name in known}


def _unknown(name: str, known: list[str]) -> InvalidRequest:
    return InvalidRequest(
        f"{_WHERE}: {name[:80]} can't be changed for this model; allowed: "
        f"{', '.join(known) or 'nothing'}",
        param=_WHERE,
    )


def _check_type(name: str, value: Any, where: str) -> None:
    switch = name.startswith("do_")
    allowed = (int, float) if name == "fps" else (int,)
    if isinstance(value, bool) != switch or not isinstance(value, allowed):
        wanted = "true or false" if switch else "a number" if name == "fps" else "a whole number"
        raise InvalidRequest(f"{where}: {name} must be {wanted}", param=where)


def _check(image: Preparation, where: str) -> None:
    if isinstance(image, (PatchImages, VideoFrames)):
        least = (image.patch * image.merge) ** 2
        if not least <= image.min_pixels <= image.max_pixels <= 1 << 28:
            raise InvalidRequest(
                f"{where}: min_pixels and max_pixels must be ascending, from {least} to {1 << 28}",
                param=where,
            )
    if isinstance(image, VideoFrames):
        sampling = image.sampling
        if not 0 <= sampling.num_frames <= 1 << 20 or not 0 <= sampling.fps <= MAX_FPS:
            raise InvalidRequest(
                f"{where}: num_frames must be 1 to {1 << 20}, and fps above 0, to {MAX_FPS}",
                param=where,
            )
    if isinstance(image, TiledImages) and not 1 <= image.longest_edge <= 8192:
        raise InvalidRequest(f"{where}: longest_edge must be 1 to 8192", param=where)
