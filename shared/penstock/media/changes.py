"""mm_processor_kwargs: how preparations are changed by an operator, and by a request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from penstock.config.settings import MediaSettings
from penstock.errors import InvalidRequest, StartupError
from penstock.forms.form import ImageForm
from penstock.forms.video import FrameSampling, VideoForm
from penstock.media.frame_settings import FrameSettings, frame_settings, processor_settings
from penstock.media.words import WORDS
from penstock.model.media_facts import MediaFacts, MediaKind, Preparation

MAX_FPS = 1000
MAX_FRAMES = 1 << 20
_WHERE = "mm_processor_kwargs"
_OF_SIZE = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
"""The newer spelling, under `size`."""
_SWITCHES = ("do_image_splitting", "crop_to_patches", "do_pan_and_scan", "slice_mode")
_NUMBERS = ("fps", "pan_and_scan_min_ratio_to_activate")
"""Settings that are numbers, but needn't be whole."""
_NO_COST = (
    "min_pixels",
    "num_frames",
    "fps",
    "pan_and_scan_min_crop_size",
    "pan_and_scan_min_ratio_to_activate",
)
"""Settings that another one bounds, or that have a rule of their own."""


def facts_with(
    facts: MediaFacts,
    operators: dict[str, Any],
    requests: dict[str, Any],
    brought: Collection[MediaKind],
) -> MediaFacts:
    """With both mm_processor_kwargs, the operator's and a request's, which brings media of these
    kinds: the others keep the model's settings, whose bounds are not the request's affair. Each
    kind takes the settings that it has. Raises InvalidRequest for one that none has."""
    if not operators and not requests:
        return facts
    kinds = dict(facts.kinds)
    known = [_known(each.preparation) for each in kinds.values()]
    for name in (*operators, *requests):
        if not any(name in names for names in known):
            raise _unknown(name, list(dict.fromkeys(name for names in known for name in names)))
    for kind in brought:
        each = kinds[kind]
        where = f"{_WHERE}, for {WORDS[kind]}s" if len(kinds) > 1 else _WHERE
        made = changed(each.preparation, _operators(each.preparation, operators), where)
        made = narrowed(made, _own(each.preparation, requests), where)
        kinds[kind] = msgspec.structs.replace(each, preparation=made)
    return msgspec.structs.replace(facts, kinds=kinds)


def check_operators(facts: MediaFacts, settings: MediaSettings) -> None:
    """Raises StartupError for settings with which items of some kind could never be prepared."""
    own = processor_settings(settings)
    try:
        facts_with(with_frames(facts, frame_settings(settings)), own, {}, tuple(facts.kinds))
    except InvalidRequest as error:
        raise StartupError(str(error)) from None


def with_frames(facts: MediaFacts, settings: FrameSettings) -> MediaFacts:
    """Returns the facts with what the operator's settings say of videos' frames."""
    found = facts.kinds.get("video")
    if found is None or not isinstance(found.preparation, VideoForm):
        return facts
    sampling = found.preparation.sampling
    most = min(sampling.max_frames, settings.most)
    sampling = msgspec.structs.replace(
        sampling, max_frames=most, min_frames=min(sampling.min_frames, most)
    )
    if settings.num_frames is not None or settings.fps is not None:
        sampling = msgspec.structs.replace(
            sampling, num_frames=settings.num_frames or 0, fps=settings.fps or 0.0, rule=""
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
    known = _changes(image)
    values = _flat(image, given)
    for name, value in values.items():
        if name not in known:
            raise _unknown(name, list(known))
        _check_type(name, value, where)
    named = {known[name]: value for name, value in values.items()}
    if isinstance(image, VideoForm):
        sampling = {name: named.pop(name) for name in VideoForm.CHANGES if name in named}
        _check_sampling(sampling, where)
        named["sampling"] = _sampling(image.sampling, sampling)
    made = msgspec.structs.replace(image, **named)
    if isinstance(made, ImageForm | VideoForm) and (wrong := made.wrong()) is not None:
        raise InvalidRequest(f"{where}: {wrong}", param=_WHERE)
    return made


def _sampling(sampling: FrameSampling, given: dict[str, Any]) -> FrameSampling:
    if "fps" in given and not sampling.fps:  # A rule that knows of no frames per second ends.
        sampling = msgspec.structs.replace(sampling, rule="")
    return msgspec.structs.replace(sampling, **given)


def narrowed(image: Preparation, given: dict[str, Any], where: str) -> Preparation:
    """`changed` for a request: what it may cost is the operator's to say, so pictures can become
    smaller than by `image`, and frames fewer, never larger or more; `min_pixels` enlarges small
    pictures, up to the operator's `max_pixels`. Raises InvalidRequest."""
    made = changed(image, given, where)
    wider = _larger(image, made)
    if wider is None and isinstance(image, VideoForm):
        wider = _beyond(image, made)
    if wider is not None:
        raise InvalidRequest(
            f"{where}: {wider} (the server's own --mm-processor-kwargs can raise it)", param=_WHERE
        )
    return made


def _larger(image: Preparation, made: Preparation) -> str | None:
    for name, field in _changes(image).items():
        if name in _NO_COST:
            continue
        has, wants = getattr(image, field), getattr(made, field)
        if name in _SWITCHES and wants and not has:
            return f"{name} is true; this server doesn't split pictures"
        if wants > has:
            return f"{name} is {wants}; at most {has} is accepted"
    return None


def _beyond(image: VideoForm, made: Preparation) -> str | None:
    if not isinstance(made, VideoForm):
        return None
    ours, theirs = image.sampling, made.sampling
    most = min(ours.num_frames or ours.max_frames, ours.max_frames)
    if theirs.num_frames > most:
        return f"num_frames is {theirs.num_frames}; at most {most} are accepted"
    if ours.fps and theirs.fps > ours.fps:
        return f"fps is {theirs.fps:g}; at most {ours.fps:g} is accepted"
    least, wanted = (getattr(each, "min_pixels", 0) for each in (image, made))
    if wanted > least:  # All frames of a long video have at least so many.
        return f"min_pixels is {wanted}; at most {least} is accepted for videos"
    return None


def _changes(preparation: Preparation) -> Mapping[str, str]:
    return preparation.CHANGES if isinstance(preparation, ImageForm | VideoForm) else {}


def _known(preparation: Preparation) -> tuple[str, ...]:
    known = _changes(preparation)
    return (*known, "size") if "min_pixels" in known else tuple(known)


def _own(preparation: Preparation, given: dict[str, Any]) -> dict[str, Any]:
    known = _known(preparation)
    return {name: value for name, value in given.items() if name in known}


def _operators(preparation: Preparation, given: dict[str, Any]) -> dict[str, Any]:
    """Settings of the operator's that the preparation has. They are for all kinds at once: where
    one of the two bounds on pixels crosses the model's own other bound, min_pixels is what gives
    way."""
    own = _flat(preparation, _own(preparation, given))
    if "min_pixels" not in _changes(preparation):
        return own
    stated = own.keys() & {"min_pixels", "max_pixels"}
    bounds = [own.get(name, getattr(preparation, name)) for name in ("min_pixels", "max_pixels")]
    if len(stated) == 1 and all(isinstance(bound, int) for bound in bounds):
        own["min_pixels"] = min(bounds)
    return own


def _flat(preparation: Preparation, given: dict[str, Any]) -> dict[str, Any]:
    """The settings without the newer spelling."""
    values = dict(given)
    if isinstance(values.get("size"), dict):
        size = values.pop("size")
        sized = "min_pixels" in _changes(preparation)
        values |= {_OF_SIZE.get(key, key): size[key] for key in size} if sized else size
    return values


def _unknown(name: str, known: list[str]) -> InvalidRequest:
    return InvalidRequest(
        f"{_WHERE}: {name[:80]} can't be changed for this model; allowed: "
        f"{', '.join(known) or 'nothing'}",
        param=_WHERE,
    )


def _check_type(name: str, value: Any, where: str) -> None:
    switch, number = name in _SWITCHES, name in _NUMBERS
    allowed = (int, float) if number else (int,)
    if isinstance(value, bool) != switch or not isinstance(value, allowed):
        wanted = "true or false" if switch else "a number" if number else "a whole number"
        raise InvalidRequest(f"{where}: {name} must be {wanted}", param=_WHERE)


def _check_sampling(given: dict[str, Any], where: str) -> None:
    # In FrameSampling a 0 stands for no bound, which is the operator's to lift (--media-io-kwargs).
    if not 1 <= given.get("num_frames", 1) <= MAX_FRAMES or not 0 < given.get("fps", 1) <= MAX_FPS:
        raise InvalidRequest(
            f"{where}: num_frames must be 1 to {MAX_FRAMES}, and fps above 0, to {MAX_FPS}",
            param=_WHERE,
        )
