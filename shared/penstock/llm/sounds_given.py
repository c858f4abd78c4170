"""Sounds as the library's callers have them: arrays with their rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from penstock.errors import InvalidRequest
from penstock.llm.media_given import is_one_video, picture_fields, video_fields
from penstock.media.sources import MediaSource, sound_uri
from penstock.media.words import WORDS
from penstock.model.media_facts import MediaKind
from penstock.model.sound_facts import MAX_RATE, MIN_RATE

SOUND_WANTED = "(array, rate), a path, a URL or a file's bytes is needed"


def is_sound_array(given: Any) -> bool:
    """Whether it is one sound, and not several."""
    return isinstance(given, tuple) and len(given) == 2 and _is_number(given[1])


def sound_fields(given: Any, where: str) -> dict[str, Any]:
    """MediaSource's fields of one sound, (array, rate). Raises InvalidRequest for what is none."""
    if hasattr(given, "__array__"):
        raise InvalidRequest(f"{where} is an array without its rate; {SOUND_WANTED}")
    if not is_sound_array(given):
        raise InvalidRequest(f"{where} is {type(given).__name__}; {SOUND_WANTED}")
    samples, rate = given
    return {"samples": (_samples(samples, where), _rate(rate, where))}


def _is_number(value: Any) -> bool:
    """numpy's count too."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _rate(value: Any, where: str) -> int:
    if not (math.isfinite(value) and value == int(value) and MIN_RATE <= value <= MAX_RATE):
        raise InvalidRequest(
            f"{where} has the rate {value}; a whole number of {MIN_RATE} to {MAX_RATE} Hz is needed"
        )
    return int(value)


def _samples(given: Any, where: str) -> bytes:
    """float32 of floats, or of whole numbers of 16 or 32 bits, which are scaled to -1 to 1."""
    import numpy as np  # Here: who gives an array has it.

    array = np.asarray(given)
    if array.ndim != 1 or not array.size:
        raise InvalidRequest(
            f"{where} is an array of shape {list(array.shape)}; [samples] of one channel is needed"
        )
    if array.dtype in (np.int16, np.int32):
        array = array / -float(np.iinfo(array.dtype).min)
    elif array.dtype.kind != "f":
        raise InvalidRequest(
            f"{where} is an array of {array.dtype}; floats, int16 or int32 are needed"
        )
    return array.astype("<f4").tobytes()


PARTS: dict[str, MediaKind] = {
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio": "audio",
    "video_url": "video",
    "video": "video",
}
"""Types of a message's parts that are media: OpenAI's, vLLM's, and transformers'."""
FIELDS = {"image": picture_fields, "audio": sound_fields, "video": video_fields}
"""Readers of media that are neither a file nor a URL, by kind."""
_IS_ONE = {"audio": is_sound_array, "video": is_one_video}
"""Whether a list, or a tuple, is one item."""
MEDIA_FIELDS = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")
"""Fields for media of a prompt that is a dict."""
_URLS = ("data:", "http:", "https:", "file:")


def kind_of_part(part: Any) -> MediaKind | None:
    """What kind of media a message's part is; None: it is none."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    return PARTS.get(kind) if isinstance(kind, str) else None


def source_of_part(part: Mapping[str, Any], where: str) -> MediaSource:
    """Raises InvalidRequest."""
    name: str = part["type"]
    kind, uuid = PARTS[name], part.get("uuid")
    given = part.get("image_url" if name == "input_image" else name)
    if name == kind and given is None:
        given = next((part[key] for key in ("url", "path") if key in part), None)
    if name == "input_audio" and given is not None:
        given = sound_uri(given, f"{where}.input_audio")
    if isinstance(given, Mapping):
        given = given.get("url")
    if given is None and uuid is None:
        raise InvalidRequest(
            f"{where} is a {WORDS[kind]} without {name}; media are not supported so"
        )
    return source_of(given, where, uuid, kind)


def sources_of(prompt: Mapping[str, Any]) -> list[MediaSource]:
    """The media of a prompt, those of a kind in order. Raises InvalidRequest."""
    data = _by_kind(prompt, "multi_modal_data")
    uuids = _by_kind(prompt, "multi_modal_uuids")
    return [source for kind in _KINDS for source in _of_kind(kind, data.get(kind), uuids.get(kind))]


_KINDS: tuple[MediaKind, ...] = ("image", "audio", "video")


def _of_kind(kind: MediaKind, given: Any, uuids: Any) -> list[MediaSource]:
    is_one = _IS_ONE.get(kind)
    items = [given] if is_one is not None and is_one(given) else _listed(given)
    names = _listed(uuids)
    if names and items and len(items) != len(names):
        raise InvalidRequest(
            f"multi_modal_uuids has {len(names)} names for {len(items)} {WORDS[kind]}s"
        )
    count = max(len(names), len(items))
    items += [None] * (count - len(items))
    names += [None] * (count - len(names))
    return [
        source_of(item, f'multi_modal_data["{kind}"][{place}]', name, kind)
        for place, (item, name) in enumerate(zip(items, names, strict=True))
    ]


def source_of(given: Any, where: str, uuid: Any = None, kind: MediaKind = "image") -> MediaSource:
    """One item. Raises InvalidRequest for what is none."""
    if uuid is not None and not isinstance(uuid, str):
        raise InvalidRequest(f"{where}: its uuid must be a string, not {uuid!r}")
    if given is None:
        if uuid is None:
            raise InvalidRequest(f"{where} is None, and has no uuid")
        return MediaSource(where, kind, uuid=uuid)
    if isinstance(given, Path):
        return MediaSource(where, kind, path=given, uuid=uuid)
    if isinstance(given, str):
        if given[:6].lower().startswith(_URLS):
            return MediaSource(where, kind, url=given, uuid=uuid)
        return MediaSource(where, kind, path=Path(given), uuid=uuid)
    if isinstance(given, bytes):
        return MediaSource(where, kind, data=given, uuid=uuid)
    return MediaSource(where, kind, **FIELDS[kind](given, where), uuid=uuid)


def _by_kind(prompt: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    given = prompt.get(field)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequest(f'{field} must be a dict such as {{"image": …}}')
    others = sorted(str(kind) for kind in given if kind not in _KINDS)
    if others:
        raise InvalidRequest(f"{field} has {others[0][:80]!r}; supported are {', '.join(_KINDS)}")
    return given


def _listed(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def processor_changes(prompt: Mapping[str, Any]) -> dict[str, Any] | None:
    """A prompt's own mm_processor_kwargs. Raises InvalidRequest."""
    given = prompt.get("mm_processor_kwargs")
    if given is not None and not isinstance(given, Mapping):
        raise InvalidRequest("mm_processor_kwargs must be a dict")
    return None if given is None else dict(given)


def has_media(prompt: Any) -> bool:
    """Whether a prompt brings some."""
    if not isinstance(prompt, Mapping):
        return False
    return any(prompt.get(field) for field in ("multi_modal_data", "multi_modal_uuids"))
