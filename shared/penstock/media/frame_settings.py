"""Settings of media that are texts: what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from penstock.config.settings import MediaSettings
from penstock.errors import StartupError
from penstock.model.media_facts import MediaKind

MAX_ITEMS = 256
"""Most items of a prompt, whatever the setting: the engine core's own bound."""


def item_limits(settings: MediaSettings) -> dict[MediaKind, int]:
    """Items of each kind that a prompt may hold; kinds that aren't named: the default's.

    Raises StartupError.
    """
    default: dict[MediaKind, int] = {"image": 16, "audio": 16, "video": 16}
    stated = json_object("limit_mm_per_prompt", settings.limit_mm_per_prompt)
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
        default[kind] = count
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
            f"allowed_local_media_path is {settings.allowed_local_media_path}, which is not a "
            "folder"
        )
    return folder


def processor_settings(settings: MediaSettings) -> dict[str, Any]:
    """The operator's mm_processor_kwargs. Raises StartupError."""
    return json_object("mm_processor_kwargs", settings.mm_processor_kwargs)


class FrameSettings(NamedTuple):
    """The operator's, for videos. most: frames.  num_frames, fps: None where nothing is said; a
    num_frames of 0: as many as may be."""

    most: int
    num_frames: int | None = None
    fps: float | None = None


def frame_settings(settings: MediaSettings) -> FrameSettings:
    """Raises StartupError."""
    where, stated = "media_io_kwargs", json_object("media_io_kwargs", settings.media_io_kwargs)
    video = stated.pop("video", {})
    stated.pop("image", None)
    if stated or not isinstance(video, dict) or video.keys() - {"num_frames", "fps"}:
        raise StartupError(
            f"{where} is {settings.media_io_kwargs[:80]}; allowed: "
            '{"video": {"num_frames": 32, "fps": 1.0}}'
        )
    count, fps = video.get("num_frames"), video.get("fps")
    if count is not None and (type(count) is not int or not (count == -1 or count >= 1)):
        raise StartupError(f"{where}: num_frames must be a whole number from 1, or -1 for all")
    if fps is not None and (type(fps) not in (int, float) or not (fps == -1 or fps > 0)):
        raise StartupError(f"{where}: fps must be above 0, or -1 for none")
    return FrameSettings(
        settings.max_video_frames,
        None if count is None else max(count, 0),
        None if fps is None else max(float(fps), 0.0),
    )


def json_object(name: str, text: str) -> dict[str, Any]:
    """A setting that is a JSON object; empty: none. Raises StartupError."""
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise StartupError(f"{name} is {text[:80]}; a JSON object is needed") from None
