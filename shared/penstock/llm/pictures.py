"""Pictures as the library's callers have them: objects of Pillow, arrays, paths, URLs, bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource

PARTS = ("image_url", "input_image", "image_pil", "image")
"""Types of a message's parts that are pictures: OpenAI's, vLLM's, and transformers'."""
MEDIA_FIELDS = ("multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs")
"""Of a prompt that is a dict."""
_URLS = ("data:", "http:", "https:", "file:")


def is_picture(part: Any) -> bool:
    """Whether a message's part is a picture."""
    return isinstance(part, Mapping) and part.get("type") in PARTS


def source_of_part(part: Mapping[str, Any], where: str) -> MediaSource:
    """Raises InvalidRequest."""
    kind = part["type"]
    given = part.get("image_url" if kind == "input_image" else kind)
    if kind == "image" and given is None:
        given = next((part[name] for name in ("url", "path") if name in part), None)
    if isinstance(given, Mapping):
        given = given.get("url")
    uuid = part.get("uuid")
    if given is None and uuid is None:
        raise InvalidRequest(f"{where} is a picture without {kind}; media are not supported so")
    return source_of(given, where, uuid)


def sources_of(prompt: Mapping[str, Any]) -> list[MediaSource]:
    """The pictures of a prompt, in order. Raises InvalidRequest."""
    data = _by_kind(prompt, "multi_modal_data")
    uuids = _by_kind(prompt, "multi_modal_uuids")
    pictures = _listed(data.get("image"))
    names = _listed(uuids.get("image"))
    if names and pictures and len(names) != len(pictures):
        raise InvalidRequest(
            f"multi_modal_uuids has {len(names)} names for {len(pictures)} pictures"
        )
    count = max(len(names), len(pictures))
    pictures += [None] * (count - len(pictures))
    names += [None] * (count - len(names))
    return [
        source_of(picture, f'multi_modal_data["image"][{place}]', name)
        for place, (picture, name) in enumerate(zip(pictures, names, strict=True))
    ]


def source_of(given: Any, where: str, uuid: Any = None) -> MediaSource:
    """One picture. Raises InvalidRequest for what is none."""
    if uuid is not None and not isinstance(uuid, str):
        raise InvalidRequest(f"{where}: its uuid must be a text, not {uuid!r}")
    if given is None:
        if uuid is None:
            raise InvalidRequest(f"{where} is None, and has no uuid")
        return MediaSource(where, uuid=uuid)
    if isinstance(given, Path):
        return MediaSource(where, path=given, uuid=uuid)
    if isinstance(given, str):
        if given.lower().startswith(_URLS):
            return MediaSource(where, url=given, uuid=uuid)
        return MediaSource(where, path=Path(given), uuid=uuid)
    if isinstance(given, bytes):
        return MediaSource(where, data=given, uuid=uuid)
    if hasattr(given, "convert") and hasattr(given, "tobytes"):  # Pillow's
        rgb = given.convert("RGB")
        return MediaSource(where, rgb=(rgb.tobytes(), rgb.width, rgb.height), uuid=uuid)
    if hasattr(given, "__array_interface__"):
        return MediaSource(where, rgb=_rows(given, where), uuid=uuid)
    raise InvalidRequest(
        f"{where} is {type(given).__name__}; a PIL.Image, an array of uint8, a path, a URL or a "
        "file's bytes is needed"
    )


def _rows(given: Any, where: str) -> tuple[bytes, int, int]:
    """Of uint8 [height, width, 3], [3, height, width], or [height, width] in grey."""
    import numpy as np  # Here: who gives an array has it.

    array = np.asarray(given)
    shape = array.shape
    if array.dtype != np.uint8 or array.ndim not in (2, 3):
        raise InvalidRequest(
            f"{where} is an array of {array.dtype} {list(shape)}; uint8 [height, width, 3] is "
            "needed"
        )
    if array.ndim == 2:
        array = np.repeat(array[:, :, None], 3, axis=2)
    elif shape[2] != 3 and shape[0] == 3:
        array = array.transpose(1, 2, 0)
    if array.shape[2] != 3 or not array.size:
        raise InvalidRequest(
            f"{where} is an array of shape {list(shape)}; [height, width, 3] is needed"
        )
    return array.tobytes(), array.shape[1], array.shape[0]


def _by_kind(prompt: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    given = prompt.get(field)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InvalidRequest(f'{field} must be a dict such as {{"image": …}}')
    others = sorted(str(kind) for kind in given if kind != "image")
    if others:
        raise InvalidRequest(f"{field} has {others[0][:80]!r}; pictures alone are supported: image")
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


def has_pictures(prompt: Any) -> bool:
    """Whether a prompt brings some."""
    if not isinstance(prompt, Mapping):
        return False
    return any(prompt.get(field) for field in ("multi_modal_data", "multi_modal_uuids"))
